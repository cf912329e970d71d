//! What a bench found out, and how it is printed.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};
use serde_json::{Value, json};

/// One figure of a bench, with what it was made from.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) bench: &'static str,
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) goal: f64,
    /// Figures of both sides: medians of interleaved runs.
    pub(crate) raw: Vec<(&'static str, f64)>,
}

impl Row {
    /// Whether the goal is met. So far all figures are costs.
    pub(crate) fn met(&self) -> bool {
        self.value <= self.goal
    }

    /// The row with one more raw figure.
    pub(crate) fn beside(mut self, name: &'static str, value: f64) -> Self {
        self.raw.push((name, value));
        self
    }

    pub(crate) fn to_json(&self) -> Value {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        let mut object = json!({
            "bench": self.bench,
            "name": self.name,
            "value": rounded(self.value),
            "goal": self.goal,
            "better": "lower",
            "met": self.met(),
        });
        for (name, value) in &self.raw {
            object[*name] = rounded(*value).into();
        }
        object
    }
}

/// Prints rows: JSON, one a line, or a table.
pub(crate) fn print(rows: &[Row], json: bool) {
    if json {
        rows.iter().for_each(|row| println!("{}", row.to_json()));
        return;
    }
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_header(["name", "value", "goal", "met", "medians"]);
    for row in rows {
        let raw: Vec<String> = row
            .raw
            .iter()
            .map(|(name, value)| format!("{name} {value:.2}"))
            .collect();
        table.add_row([
            row.name.to_owned(),
            format!("{:.3}", row.value),
            format!("≤ {}", row.goal),
            if row.met() { "yes" } else { "NO" }.to_owned(),
            raw.join(", "),
        ]);
    }
    println!("{table}");
}

/// Figures that runs printed, by name, each as often as it was measured.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    /// Collects from lines `@name number`, and `@name {json}` of `am_pingpong`, of which each number counts as `name.key`.
    pub(crate) fn of<'a>(lines: impl IntoIterator<Item = &'a String>) -> Self {
        let mut samples = Self::default();
        for line in lines {
            let Some((name, value)) = line.strip_prefix('@').and_then(|line| line.split_once(' ')) else {
                continue;
            };
            match serde_json::from_str(value.trim()) {
                Ok(Value::Number(number)) => samples.add(name, number.as_f64()),
                Ok(Value::Object(object)) => {
                    object
                        .iter()
                        .for_each(|(key, value)| samples.add(&format!("{name}.{key}"), value.as_f64()));
                }
                _ => {}
            }
        }
        samples
    }

    fn add(&mut self, name: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.0.entry(name.to_owned()).or_default().push(value);
        }
    }

    /// The median of what was measured under this name, at least `runs` times.
    pub(crate) fn median(&self, name: &str, runs: usize) -> anyhow::Result<f64> {
        let mut values = self.0.get(name).cloned().unwrap_or_default();
        anyhow::ensure!(
            values.len() >= runs,
            "{name} was measured {} times instead of {runs}",
            values.len()
        );
        values.sort_by(f64::total_cmp);
        Ok(values[values.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_of_numbers_and_of_json() {
        let lines = [
            "@a 3",
            "noise",
            "@a 1",
            "@a 2.5",
            r#"@b {"p50_us":7.5,"mode":"poll"}"#,
        ]
        .map(String::from);
        let samples = Samples::of(&lines);
        assert_eq!(samples.median("a", 3).unwrap(), 2.5);
        assert_eq!(samples.median("b.p50_us", 1).unwrap(), 7.5);
        assert!(
            samples
                .median("a", 4)
                .unwrap_err()
                .to_string()
                .contains("3 times instead of 4")
        );
        assert!(samples.median("b.mode", 1).is_err());
    }

    #[test]
    fn a_row_says_whether_its_goal_is_met() {
        let row = |value| Row {
            bench: "b",
            name: "n",
            value,
            goal: 1.0,
            raw: vec![("ours_us", 1.5)],
        };
        assert!(row(0.9).met() && !row(1.1).met());
        let expected =
            json!({"bench":"b","name":"n","value":0.9,"goal":1.0,"better":"lower","met":true,"ours_us":1.5});
        assert_eq!(row(0.9).to_json(), expected);
    }
}
