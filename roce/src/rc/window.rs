//! How many request packets may be under way.
//!
//! The specification leaves this to the requester. Over a switch that drops when it is full, or a socket whose buffer is, the answer that works
//! is TCP's: grow until something is lost, then halve (RFC 5681). Losses cost a go-back-N here, not one packet, so the window
//! starts small and the most it grows to fits an ordinary socket buffer.

/// A congestion window, counted in packets.
#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    /// Below it the window grows with each acknowledged packet, above it once a window.
    threshold: u32,
    /// Packets acknowledged since it grew last, above the threshold.
    acked: u32,
}

impl Window {
    const FIRST: u32 = 32;
    const LEAST: u32 = 4;
    const MOST: u32 = 256;

    pub(super) fn new() -> Self {
        Self {
            size: Self::FIRST,
            threshold: Self::MOST,
            acked: 0,
        }
    }

    /// Packets that may be under way.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn on_ack(&mut self, packets: u32) {
        if self.size < self.threshold {
            self.size += packets;
        } else {
            self.acked += packets;
            if self.acked >= self.size {
                self.acked = 0;
                self.size += 1;
            }
        }
        self.size = self.size.min(Self::MOST);
    }

    /// A packet was lost, and others after it arrived.
    pub(super) fn on_loss(&mut self) {
        self.threshold = (self.size / 2).max(Self::LEAST);
        self.size = self.threshold;
        self.acked = 0;
    }

    /// Nothing arrived any more.
    pub(super) fn on_timeout(&mut self) {
        self.on_loss();
        self.size = Self::LEAST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_fast_at_first_and_slowly_after_a_loss() {
        let mut window = Window::new();
        window.on_ack(32);
        assert_eq!(window.size(), 64);
        window.on_loss();
        assert_eq!(window.size(), 32);
        window.on_ack(31);
        assert_eq!(window.size(), 32);
        window.on_ack(1);
        assert_eq!(window.size(), 33);
    }

    #[test]
    fn it_never_closes_and_never_grows_out_of_bounds() {
        let mut window = Window::new();
        for _ in 0..20 {
            window.on_timeout();
        }
        assert_eq!(window.size(), Window::LEAST);
        for _ in 0..10_000 {
            window.on_ack(100);
        }
        assert_eq!(window.size(), Window::MOST);
    }
}
