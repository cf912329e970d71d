//! The latency of messages of every size, over the software device: no size may be much slower than the one before.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, anyhow};
use comfy_table::{Table, presets};
use plotters::prelude::*;

use super::local::{Way, pingpong};
use super::row::{Better, Row, Samples};
use super::{RUNS, workspace};

/// The largest message, in bytes.
const LARGEST: u64 = 16 << 20;

/// The largest payload that goes inline, and the largest that fits one segment, with the default settings: after 40 bytes of header.
const THRESHOLDS: [u64; 2] = [220 - 40, 8192 - 40];

/// What a step costs at most: crossing a threshold by a byte, or doubling a size, beside twice the time.
const GOAL: f64 = 1.3;

/// Bytes that one run sends, as far as its bounds of iterations allow.
const BYTES: u64 = 64 << 20;

pub(super) fn run(json: bool) -> Result<Vec<Row>> {
    let root = workspace::root();
    let program = adverb_guest::am_pingpong(&root)?;
    let sizes = sizes();
    let mut samples = Samples::default();
    for _ in 0..RUNS {
        for way in [Way::Network, Way::SharedMemory] {
            for size in &sizes {
                let iterations = (BYTES / size).clamp(20, 2000).to_string();
                let size = size.to_string();
                let arguments = [
                    "--test",
                    "lat",
                    "--warmup",
                    "20",
                    "--size",
                    &size,
                    "--iters",
                    &iterations,
                ];
                pingpong(&program, &mut samples, way, &key(way, &size), &arguments)?;
            }
        }
    }
    let curve = |way: Way| -> Result<Curve> {
        let points = sizes.iter().map(|size| {
            let p50 = samples.median(&format!("{}.p50_us", key(way, &size.to_string())), RUNS)?;
            Ok((*size, p50))
        });
        Ok(Curve(points.collect::<Result<_>>()?))
    };
    let (network, shared) = (curve(Way::Network)?, curve(Way::SharedMemory)?);
    if !json {
        print(&network, &shared);
    }
    let file = root.join("target/sweep.svg");
    plot(&file, &network, &shared).map_err(|error| anyhow!("plotting to {}: {error}", file.display()))?;
    eprintln!("plot: {}", file.display());
    let ((network, network_at), (shared, shared_at)) = (network.worst_step(), shared.worst_step());
    Ok(vec![Row {
        bench: "sweep",
        name: "worst_step",
        value: network.max(shared),
        goal: Some(GOAL),
        better: Better::Lower,
        raw: vec![
            ("network", network),
            ("network_to_bytes", network_at as f64),
            ("shared", shared),
            ("shared_to_bytes", shared_at as f64),
        ],
    }])
}

fn key(way: Way, size: &str) -> String {
    format!("{}_{size}", way.name())
}

/// All powers of 2, and both sides of each threshold.
fn sizes() -> BTreeSet<u64> {
    let doublings = (0..).map(|power| 1 << power).take_while(|size| *size <= LARGEST);
    doublings
        .chain(
            THRESHOLDS
                .into_iter()
                .flat_map(|threshold| [threshold, threshold + 1]),
        )
        .collect()
}

/// Median latencies in µs, by size.
struct Curve(Vec<(u64, f64)>);

impl Curve {
    fn at(&self, size: u64) -> Option<f64> {
        let point = self.0.iter().find(|(at, _)| *at == size);
        point.map(|(_, p50)| *p50)
    }

    /// The steepest step, and where it leads to: `t(T + 1) / t(T)` at a threshold, or `t(2 n) / (2 t(n))`.
    fn worst_step(&self) -> (f64, u64) {
        let crossings = THRESHOLDS
            .into_iter()
            .filter_map(|threshold| Some((self.at(threshold + 1)? / self.at(threshold)?, threshold + 1)));
        let doublings = self
            .0
            .iter()
            .filter_map(|(size, p50)| Some((self.at(2 * size)? / (2.0 * p50), 2 * size)));
        crossings
            .chain(doublings)
            .max_by(|(one, _), (other, _)| one.total_cmp(other))
            .unwrap_or_default()
    }
}

fn print(network: &Curve, shared: &Curve) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "bytes",
        "over UDP: p50 in µs",
        "shared memory: p50 in µs",
    ]);
    for ((size, network), (_, shared)) in network.0.iter().zip(&shared.0) {
        table.add_row([size.to_string(), format!("{network:.2}"), format!("{shared:.2}")]);
    }
    println!("{table}");
}

fn plot(file: &Path, network: &Curve, shared: &Curve) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, (900, 600)).into_drawing_area();
    area.fill(&WHITE)?;
    let slowest = network.0.iter().chain(&shared.0).map(|(_, p50)| *p50);
    let top = slowest.fold(1.0, f64::max) * 1.5;
    let mut chart = ChartBuilder::on(&area)
        .caption("One-way latency by size, medians", ("sans-serif", 20))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((1.0..LARGEST as f64).log_scale(), (0.1..top).log_scale())?;
    chart.configure_mesh().x_desc("bytes").y_desc("µs").draw()?;
    for (curve, name, colour) in [(network, "over UDP", BLUE), (shared, "shared memory", RED)] {
        let points = curve.0.iter().map(|(size, p50)| (*size as f64, *p50));
        chart
            .draw_series(LineSeries::new(points, colour))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    chart.configure_series_labels().border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steepest_step_is_a_crossing_or_a_doubling() {
        let [first, second] = THRESHOLDS;
        let flat = |cliff: f64| {
            let points = sizes()
                .into_iter()
                .map(|size| (size, if size > first { cliff } else { 1.0 }));
            Curve(points.collect())
        };
        assert_eq!(flat(1.0).worst_step(), (1.0, second + 1));
        assert_eq!(flat(5.0).worst_step(), (5.0, first + 1));
        let doubling = Curve(vec![(1, 1.0), (2, 3.0), (4, 6.0)]);
        assert_eq!(doubling.worst_step(), (1.5, 2));
    }

    #[test]
    fn sizes_hold_both_sides_of_each_threshold() {
        let sizes = sizes();
        for size in [1, 2, LARGEST, 180, 181, 8152, 8153] {
            assert!(sizes.contains(&size), "{size}");
        }
    }
}
