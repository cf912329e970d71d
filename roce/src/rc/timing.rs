//! The codes that stand for times.

use std::time::Duration;

/// The local ACK timeout of a code of 5 bits: 4.096 µs × 2^code; 0 is none (IBTA volume 1, section 9.7.6.1.3).
pub(super) fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

/// The delay that an RNR NAK's code of 5 bits asks for (IBTA volume 1, table 45).
pub(super) fn rnr_delay(code: u8) -> Duration {
    /// In units of 10 µs.
    const TABLE: [u32; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536,
        2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    Duration::from_micros(10) * TABLE[usize::from(code & 31)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_corners() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
    }
}
