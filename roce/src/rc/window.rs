//! How many request packets may be under way.
//!
//! The specification leaves this to the requester. Over a switch that drops when it is full, or a socket whose buffer is, the answer that works
//! is TCP's: grow until something is lost, then halve (RFC 5681). Losses cost a go-back-N here, not one packet, so the window
//! starts small and the most it grows to fits an ordinary socket buffer.
//!
//! # Congestion notifications
//! A switch that marks packets before it has to drop them gives a finer answer, as in DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA
//! Deployments", 2015), whose rules are for a rate and here are for a window. An estimate of how congested the way is, between 0 and 1, grows by a part of what it lacks with each
//! notification, and loses that part with each [`FORGET`] without one. By half of the estimate the window shrinks, once a round trip. Then it takes
//! half of the way back to what it was in each round trip, five times, and after that grows by one packet each.

use std::time::{Duration, Instant};

/// The estimate that stands for 1.
const ONE: u32 = 1 << 16;
/// The part of the estimate that one notification changes is 2^-4. DCQCN's 2^-8 is for switches whose notifications come from the hardware
/// at the highest rate there is; this is DCTCP's (RFC 8257).
const GAIN: u32 = 4;
/// A little more than the time in which one notification may follow another.
const FORGET: Duration = Duration::from_micros(55);
/// After so many of these nothing is left of the estimate.
const FORGOTTEN: u128 = 200;
/// Round trips in which the window takes half of the way back.
const RECOVERY: u32 = 5;

/// A congestion window, counted in packets.
#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    /// Below it the window grows with each acknowledged packet, above it once a window.
    threshold: u32,
    /// Packets acknowledged since it grew last, above the threshold.
    acked: u32,
    /// How congested the way is, of [`ONE`].
    congestion: u32,
    /// When the last notification came.
    notified: Option<Instant>,
    /// What it was before it shrank by a notification, and how often it still goes half of the way back there.
    before: u32,
    recovery: u32,
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
            congestion: ONE,
            notified: None,
            before: 0,
            recovery: 0,
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
                if self.recovery > 0 {
                    self.recovery -= 1;
                    self.size += self.before.saturating_sub(self.size) / 2;
                } else {
                    self.size += 1;
                }
            }
        }
        self.size = self.size.min(Self::MOST);
    }

    /// A packet was lost, and others after it arrived.
    pub(super) fn on_loss(&mut self) {
        self.threshold = (self.size / 2).max(Self::LEAST);
        self.size = self.threshold;
        self.acked = 0;
        self.recovery = 0;
    }

    /// The peer says that packets were marked.
    pub(super) fn on_notification(&mut self, now: Instant) {
        let silence = self
            .notified
            .map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        for _ in 0..(silence.as_nanos() / FORGET.as_nanos()).min(FORGOTTEN) {
            self.congestion -= self.congestion >> GAIN;
        }
        self.congestion += (ONE - self.congestion) >> GAIN;
        self.notified = Some(now);
    }

    /// The first notification of a round trip came.
    pub(super) fn on_congestion(&mut self) {
        self.before = self.size;
        self.recovery = RECOVERY;
        // At most 256 × 2^16.
        let less = self.size * self.congestion / (2 * ONE);
        self.size = (self.size - less).max(Self::LEAST);
        self.threshold = self.size;
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

    /// One round trip's acknowledgements.
    fn round_trip(window: &mut Window) {
        window.on_ack(window.size());
    }

    #[test]
    fn the_first_notification_halves_it_and_five_round_trips_bring_most_of_it_back() {
        let mut window = Window::new();
        window.on_ack(96);
        assert_eq!(window.size(), 128);
        window.on_notification(Instant::now());
        window.on_congestion();
        assert_eq!(window.size(), 64);
        let sizes: Vec<u32> = (0..7)
            .map(|_| {
                round_trip(&mut window);
                window.size()
            })
            .collect();
        assert_eq!(sizes, [96, 112, 120, 124, 126, 127, 128]);
    }

    #[test]
    fn rare_notifications_take_little_and_steady_ones_half() {
        let start = Instant::now();
        let shrunk = |apart: Duration| {
            let mut window = Window::new();
            for i in 0..50 {
                window.on_notification(start + apart * i);
            }
            window.on_ack(1000);
            window.on_congestion();
            window.size()
        };
        assert_eq!(shrunk(Duration::from_micros(50)), Window::MOST / 2);
        // Each adds a sixteenth, of which hardly anything is left when the next comes.
        assert_eq!(shrunk(Duration::from_millis(10)), Window::MOST - 8);
        let between = shrunk(Duration::from_micros(300));
        assert!((129..248).contains(&between), "{between}");
    }

    #[test]
    fn a_loss_ends_the_recovery() {
        let mut window = Window::new();
        window.on_notification(Instant::now());
        window.on_congestion();
        window.on_loss();
        assert_eq!(window.size(), 8);
        round_trip(&mut window);
        assert_eq!(window.size(), 9);
    }

    #[test]
    fn it_never_closes_and_never_grows_out_of_bounds() {
        let mut window = Window::new();
        for _ in 0..20 {
            window.on_timeout();
            window.on_congestion();
        }
        assert_eq!(window.size(), Window::LEAST);
        for _ in 0..10_000 {
            window.on_ack(100);
        }
        assert_eq!(window.size(), Window::MOST);
    }
}
