//! Latencies, and what they look like.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Bars are so wide at most.
const BAR: usize = 50;

/// A histogram of latencies, from 1 ns to a minute, to three significant digits.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Latencies {
    /// An empty one. It does not allocate later.
    pub fn new() -> Self {
        const MINUTE_NS: u64 = 60_000_000_000;
        // The bounds are valid: 1 ≤ low, 2 × low ≤ high, and at most five digits.
        let histogram = Histogram::new_with_bounds(1, MINUTE_NS, 3);
        Self {
            histogram: histogram.unwrap_or_else(|error| unreachable!("bounds of a histogram: {error}")),
        }
    }

    /// Records one latency. More than a minute counts as a minute.
    pub fn record(&mut self, latency: Duration) {
        self.histogram
            .saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The latency that `percent` % stay within, in µs; `None` if none was recorded.
    pub fn percentile_us(&self, percent: f64) -> Option<f64> {
        self.if_any(self.histogram.value_at_percentile(percent) as f64 / 1e3)
    }

    /// The mean, in µs; `None` if none was recorded.
    pub fn mean_us(&self) -> Option<f64> {
        self.if_any(self.histogram.mean() / 1e3)
    }

    fn if_any(&self, figure: f64) -> Option<f64> {
        (self.count() > 0).then_some(figure)
    }

    /// A picture of it: a line for each doubling, with a bar as long as its share.
    pub fn to_text(&self) -> String {
        let buckets: Vec<(u64, u64)> = self
            .histogram
            .iter_log(1, 2.0)
            .map(|bucket| (bucket.value_iterated_to(), bucket.count_since_last_iteration()))
            .collect();
        let most = buckets.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let mut text = String::new();
        for (upto, count) in buckets.into_iter().skip_while(|(_, count)| *count == 0) {
            // Rounded up, so that what occurred is seen.
            let bar = (count * BAR as u64).div_ceil(most.max(1)) as usize;
            let _ = writeln!(
                text,
                "{:>10.1} µs |{:<BAR$}| {count}",
                upto as f64 / 1e3,
                "#".repeat(bar)
            );
        }
        text
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut latencies = Latencies::new();
        assert_eq!((latencies.percentile_us(50.0), latencies.mean_us()), (None, None));
        for us in 1..=100 {
            latencies.record(Duration::from_micros(us));
        }
        assert_eq!(latencies.count(), 100);
        assert!((latencies.percentile_us(50.0).unwrap() - 50.0).abs() < 0.1);
        assert!((latencies.percentile_us(99.0).unwrap() - 99.0).abs() < 0.1);
        assert!((latencies.mean_us().unwrap() - 50.5).abs() < 0.1);
        latencies.record(Duration::from_secs(1000));
        assert!(latencies.percentile_us(100.0).unwrap() >= 59e6);
    }

    #[test]
    fn every_bucket_that_has_something_has_a_bar() {
        let mut latencies = Latencies::new();
        for us in [1, 100, 100, 100, 100] {
            latencies.record(Duration::from_micros(us));
        }
        let text = latencies.to_text();
        assert_eq!(
            text.lines().filter(|line| line.contains('#')).count(),
            2,
            "{text}"
        );
        assert_eq!(Latencies::new().to_text(), "");
    }
}
