//! Replaying fuzz corpora.

use std::fs;
use std::path::{Path, PathBuf};

/// Set, it makes [`Corpus::assert_holds`] write the seeds.
const WRITE: &str = "ADVERB_WRITE_CORPUS";

/// The corpus of a fuzz target: inputs in files of their own, committed under `fuzz/corpus/`, of which ordinary tests see that what fuzzing once found
/// stays found.
#[derive(Clone, Debug)]
pub struct Corpus {
    directory: PathBuf,
}

impl Corpus {
    /// The corpus of a crate's target. The crate is where its `CARGO_MANIFEST_DIR` is.
    pub fn new(crate_directory: &str, target: &str) -> Self {
        Self {
            directory: Path::new(crate_directory).join("fuzz/corpus").join(target),
        }
    }

    /// Hands every input to `check`.
    ///
    /// # Panics
    /// If `check` does, with the input's name printed, or if there are no inputs.
    #[track_caller]
    pub fn replay(&self, check: impl Fn(&[u8])) {
        let paths = self.paths();
        assert!(!paths.is_empty(), "{} is empty", self.directory.display());
        for path in &paths {
            // Printed only if the test fails, of which it is then the last line.
            println!("{}", path.display());
            check(&read(path));
        }
        println!("replayed {} inputs", paths.len());
    }

    /// Sees to it that the corpus has these seeds, by name, as this version makes them. If `ADVERB_WRITE_CORPUS` is set, it writes them first.
    ///
    /// # Panics
    /// If a seed is not there, or is another one.
    #[track_caller]
    pub fn assert_holds<N: AsRef<str>>(&self, seeds: impl IntoIterator<Item = (N, Vec<u8>)>) {
        let write = std::env::var_os(WRITE).is_some();
        for (name, bytes) in seeds {
            let path = self.directory.join(name.as_ref());
            if write {
                let written = fs::create_dir_all(&self.directory).and_then(|()| fs::write(&path, &bytes));
                assert!(written.is_ok(), "{}: {written:?}", path.display());
            }
            assert!(
                read(&path) == bytes,
                "{} is not what this version makes; {WRITE}=1 writes it anew",
                path.display()
            );
        }
    }

    #[track_caller]
    fn paths(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match entries {
            Ok(entries) => entries.into_iter().map(|entry| entry.path()).collect(),
            Err(error) => panic!("{}: {error}", self.directory.display()),
        }
    }
}

#[track_caller]
fn read(path: &Path) -> Vec<u8> {
    match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}
