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
    /// What it should be, if that is known.
    pub(crate) goal: Option<f64>,
    pub(crate) better: Better,
    /// Figures of both sides: medians of interleaved runs.
    pub(crate) raw: Vec<(&'static str, f64)>,
}

/// On which side of its goal a figure should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// It is a cost.
    Lower,
    /// It is a gain.
    Higher,
}

impl Row {
    /// Whether the goal is met, if there is one.
    pub(crate) fn met(&self) -> Option<bool> {
        self.goal.map(|goal| match self.better {
            Better::Lower => self.value <= goal,
            Better::Higher => self.value >= goal,
        })
    }

    /// The row for a figure that should be on that side of its goal. Rows are made for costs.
    pub(crate) fn better(mut self, better: Better) -> Self {
        self.better = better;
        self
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
            "better": match self.better {
                Better::Lower => "lower",
                Better::Higher => "higher",
            },
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
            match (row.goal, row.better) {
                (None, _) => String::new(),
                (Some(goal), Better::Lower) => format!("≤ {goal}"),
                (Some(goal), Better::Higher) => format!("≥ {goal}"),
            },
            match row.met() {
                None => "",
                Some(true) => "yes",
                Some(false) => "NO",
            }
            .to_owned(),
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
    pub(crate) fn of(lines: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut samples = Self::default();
        samples.add_lines(lines);
        samples
    }

    /// Adds what more lines say.
    pub(crate) fn add_lines(&mut self, lines: impl IntoIterator<Item = impl AsRef<str>>) {
        for line in lines {
            let Some((name, value)) = line
                .as_ref()
                .strip_prefix('@')
                .and_then(|line| line.split_once(' '))
            else {
                continue;
            };
            match serde_json::from_str(value.trim()) {
                Ok(Value::Number(number)) => self.add(name, number.as_f64()),
                Ok(Value::Object(object)) => {
                    object
                        .iter()
                        .for_each(|(key, value)| self.add(&format!("{name}.{key}"), value.as_f64()));
                }
                _ => {}
            }
        }
    }

    /// Adds one figure.
    pub(crate) fn add(&mut self, name: &str, value: Option<f64>) {
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
            r#"@b {"p50_us":7.5,"p99_us":null,"mode":"poll"}"#,
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
        for no_figure in ["b.mode", "b.p99_us"] {
            assert!(samples.median(no_figure, 1).is_err());
        }
    }

    #[test]
    fn a_row_says_whether_its_goal_is_met() {
        let row = |value| Row {
            bench: "b",
            name: "n",
            value,
            goal: Some(1.0),
            better: Better::Lower,
            raw: vec![("ours_us", 1.5)],
        };
        assert_eq!(
            [0.9, 1.1].map(|value| row(value).met()),
            [Some(true), Some(false)]
        );
        let gain = |value| row(value).better(Better::Higher);
        assert_eq!(
            [0.9, 1.1].map(|value| gain(value).met()),
            [Some(false), Some(true)]
        );
        assert_eq!(
            Row {
                goal: None,
                ..row(1.0)
            }
            .met(),
            None
        );
        let expected =
            json!({"bench":"b","name":"n","value":0.9,"goal":1.0,"better":"lower","met":true,"ours_us":1.5});
        assert_eq!(row(0.9).to_json(), expected);
    }
}
