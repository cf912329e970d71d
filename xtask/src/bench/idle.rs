//! What connections cost while nothing is sent.

use adverb_guest::Guests;
use anyhow::Result;

use super::measure;
use super::row::{Better, Row};
use crate::workspace;

const SCRIPT: &str = r#"
$PINGPONG --listen 127.0.0.1 --device rxe0 --mode hybrid > /dev/null & server=$!
am idle --mode hybrid --test idle --endpoints 100 --secs 60 127.0.0.1 || exit 1
kill $server; wait $server
"#;

pub(super) fn run() -> Result<Vec<Row>> {
    let samples = measure(Guests::new(workspace::root()), SCRIPT)?;
    let row = |name, key: &str, goal| -> Result<Row> {
        let value = samples.median(key, 1)?;
        Ok(Row {
            bench: "idle",
            name,
            value,
            goal: Some(goal),
            better: Better::Lower,
            raw: vec![("endpoints", 100.0)],
        })
    };
    Ok(vec![
        row("wakeups_per_s", "idle.wakeups_per_s", 20.0)?,
        row("cpu_percent", "idle.cpu_percent", 1.0)?,
    ])
}
