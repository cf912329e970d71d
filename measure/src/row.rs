//! Results, as programs print them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a worker came to its completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wakes {
    /// By polling, without having slept.
    pub spin: u64,
    /// Woken by a completion event.
    pub event: u64,
    /// Found by the safety interval alone.
    pub safety: u64,
}

/// The result of one run of `am_pingpong`: as JSON one object, with its keys in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PingPongRow {
    /// `lat`, `rate` or `bw`.
    pub test: String,
    /// The provider of the device.
    pub provider: String,
    /// The device.
    pub device: String,
    /// `poll`, `event` or `hybrid`.
    pub mode: String,
    /// Bytes of a message.
    pub size: usize,
    /// Messages measured: round trips for `lat`.
    pub iters: u64,
    /// The pause between two of them, in µs.
    pub gap_us: u64,
    /// Median one-way latency, in µs. Like the next three `None`, in JSON `null`, for a test that measures none.
    pub p50_us: Option<f64>,
    /// The 99th percentile, in µs.
    pub p99_us: Option<f64>,
    /// The 99.9th percentile, in µs.
    pub p999_us: Option<f64>,
    /// The mean, in µs.
    pub avg_us: Option<f64>,
    /// Messages a second.
    pub msgs_per_s: f64,
    /// MiB a second.
    pub mib_per_s: f64,
    /// CPU time of the client's process for each message, in µs.
    pub cpu_us_per_msg: f64,
    /// How the client's worker came to its completions.
    pub wakes: Wakes,
    /// Wake-ups that found nothing.
    pub spurious_wakes: u64,
    /// Completions whose event was lost.
    pub missed_completions: u64,
}

impl PingPongRow {
    /// As one line of JSON.
    pub fn to_json(&self) -> String {
        // Numbers and strings always can be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for PingPongRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            test,
            provider,
            device,
            mode,
            size,
            iters,
            gap_us,
            ..
        } = self;
        writeln!(
            f,
            "{test}: {size} bytes, {iters} messages, {mode} mode, {device} ({provider}), gap {gap_us} µs"
        )?;
        if let (Some(p50), Some(p99), Some(p999), Some(mean)) =
            (self.p50_us, self.p99_us, self.p999_us, self.avg_us)
        {
            writeln!(
                f,
                "  one way   p50 {p50:.2} µs, p99 {p99:.2} µs, p99.9 {p999:.2} µs, mean {mean:.2} µs"
            )?;
        }
        writeln!(
            f,
            "  rate      {:.0} messages/s, {:.2} MiB/s",
            self.msgs_per_s, self.mib_per_s
        )?;
        writeln!(f, "  CPU       {:.2} µs per message", self.cpu_us_per_msg)?;
        let Wakes { spin, event, safety } = self.wakes;
        write!(
            f,
            "  wakes     {spin} while polling, {event} by event, {safety} by the safety interval; spurious {}, missed completions {}",
            self.spurious_wakes, self.missed_completions
        )
    }
}

/// What a server costs while nothing is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdleRow {
    /// `idle`.
    pub test: String,
    /// Connections that were open.
    pub endpoints: usize,
    /// How long, in s.
    pub secs: u64,
    /// Wake-ups of the server's worker a second.
    pub wakeups_per_s: f64,
    /// CPU of the server's process, in % of one CPU.
    pub cpu_percent: f64,
}

impl IdleRow {
    /// As one line of JSON.
    pub fn to_json(&self) -> String {
        // Numbers and strings always can be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for IdleRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "idle: {} endpoints for {} s cost the server {:.1} wake-ups/s and {:.2} % CPU",
            self.endpoints, self.secs, self.wakeups_per_s, self.cpu_percent
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_its_keys_in_the_documented_order() {
        let row = PingPongRow {
            test: "lat".into(),
            provider: "libibverbs".into(),
            device: "rxe0".into(),
            mode: "event".into(),
            size: 8,
            iters: 10,
            gap_us: 0,
            p50_us: Some(1.5),
            p99_us: Some(2.0),
            p999_us: Some(3.0),
            avg_us: Some(1.6),
            msgs_per_s: 1000.0,
            mib_per_s: 0.5,
            cpu_us_per_msg: 0.25,
            wakes: Wakes {
                spin: 1,
                event: 2,
                safety: 3,
            },
            spurious_wakes: 4,
            missed_completions: 0,
        };
        let json = row.to_json();
        let expected = r#"{"test":"lat","provider":"libibverbs","device":"rxe0","mode":"event","size":8,"iters":10,"gap_us":0,"p50_us":1.5,"p99_us":2.0,"p999_us":3.0,"avg_us":1.6,"msgs_per_s":1000.0,"mib_per_s":0.5,"cpu_us_per_msg":0.25,"wakes":{"spin":1,"event":2,"safety":3},"spurious_wakes":4,"missed_completions":0}"#;
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<PingPongRow>(&json).unwrap(), row);
        assert!(row.to_string().contains("p99 2.00 µs"));

        let unmeasured = PingPongRow {
            p50_us: None,
            p99_us: None,
            p999_us: None,
            avg_us: None,
            ..row
        };
        let json = unmeasured.to_json();
        assert!(
            json.contains(r#""p50_us":null,"p99_us":null,"p999_us":null,"avg_us":null"#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<PingPongRow>(&json).unwrap(), unmeasured);
        assert!(!unmeasured.to_string().contains("p99"));
    }
}
