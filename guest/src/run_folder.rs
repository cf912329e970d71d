//! The folder of one run: shared with its guests, and gone after it, whatever ends it.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::cache::Cache;

/// How long the path of a folder with sockets may be: `sun_path` has 108 bytes (`unix(7)`), and the names need some.
const MAX_PATH: usize = 90;

/// How the names of such folders begin.
const PREFIX: &str = "run-";

/// Locked as long as the run goes on.
const LOCK: &str = "lock";

/// What commands leave for after the run: `ADVERB_OUT`.
pub(crate) const RESULTS: &str = "out";

/// The folder. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct RunFolder {
    folder: TempDir,
    _lock: File,
}

impl RunFolder {
    /// Makes one in the cache, or among the temporary files if the cache's path is too long for sockets. Removes those of runs
    /// that were killed.
    pub(crate) fn create(cache: &Cache) -> Result<Self> {
        let _one_at_a_time = cache.lock()?;
        remove_abandoned(&cache.root);
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX);
        let fits = cache.root.as_os_str().len() + PREFIX.len() + 8 <= MAX_PATH;
        let folder = if fits {
            builder.tempdir_in(&cache.root)
        } else {
            builder.tempdir()
        };
        let folder = folder.context("making a folder for the run")?;
        let lock = File::create(folder.path().join(LOCK)).context("making the run's lock")?;
        lock.lock().context("locking the run's folder")?;
        fs::create_dir(folder.path().join(RESULTS)).context("making the folder for results")?;
        Ok(Self { folder, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Moves what commands left in `ADVERB_OUT` to the cache's `out`, in place of what an earlier run left. Nothing moves if
    /// they left nothing.
    pub(crate) fn keep_results(&self, cache: &Cache) -> Result<()> {
        let (results, kept) = (self.path().join(RESULTS), cache.root.join(RESULTS));
        let mut entries = fs::read_dir(&results).context("reading the run's results")?;
        if entries.next().is_none() {
            return Ok(());
        }
        let _one_at_a_time = cache.lock()?;
        if kept.exists() {
            fs::remove_dir_all(&kept).with_context(|| format!("removing {}", kept.display()))?;
        }
        // Not a rename: the two may be on different file systems.
        let status = Command::new("mv")
            .arg("--no-target-directory")
            .args([&results, &kept])
            .status();
        let moved = status.context("running mv")?.success();
        ensure!(
            moved,
            "the run's results could not be moved to {}",
            kept.display()
        );
        Ok(())
    }
}

/// Removes the folders of runs whose process is gone.
fn remove_abandoned(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        if File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            // If it cannot go now, the next run tries again.
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(root: &TempDir) -> Cache {
        Cache::empty(root.path())
    }

    fn folders(root: &TempDir) -> usize {
        let entries = fs::read_dir(root.path()).unwrap().flatten();
        entries.filter(|entry| entry.path().is_dir()).count()
    }

    #[test]
    fn folders_of_killed_runs_go_and_those_of_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let going_on = RunFolder::create(&cache(&root)).unwrap();
        let killed = root.path().join("run-killed");
        fs::create_dir(&killed).unwrap();
        fs::write(killed.join(LOCK), "").unwrap();
        let own = RunFolder::create(&cache(&root)).unwrap();
        assert!(going_on.path().exists() && own.path().exists() && !killed.exists());
        drop((going_on, own));
        assert_eq!(folders(&root), 0);
    }

    #[test]
    fn results_of_the_last_run_that_left_some_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let kept = root.path().join(RESULTS);
        for (left, expected) in [
            (Some("first"), "first"),
            (None, "first"),
            (Some("second"), "second"),
        ] {
            let run = RunFolder::create(&cache(&root)).unwrap();
            if let Some(name) = left {
                fs::write(run.path().join(RESULTS).join(name), "").unwrap();
            }
            run.keep_results(&cache(&root)).unwrap();
            let names: Vec<_> = fs::read_dir(&kept)
                .unwrap()
                .flatten()
                .map(|entry| entry.file_name())
                .collect();
            assert_eq!(names, [expected]);
        }
    }
}
