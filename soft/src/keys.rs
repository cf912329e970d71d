//! Memory keys that nobody guesses.
//!
//! Whoever knows an rkey can use the memory behind it through any queue pair of its protection domain, and on an ordinary network anybody can
//! make packets up. So all 32 bits of a key come from the kernel's random source, and none tell where in the table it is. A key that was
//! retired is kept out of use for a while, so that who holds on to an old one is refused, and does not meet the next registration.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Keys that are not used again yet.
const RETIRED: usize = 4096;

/// A table by key.
#[derive(Debug)]
pub(crate) struct KeyTable<T> {
    /// `None` is a retired key.
    entries: HashMap<u32, Option<T>, BuildHasherDefault<KeyHasher>>,
    /// The keys that are retired, the oldest first.
    retired: VecDeque<u32>,
}

impl<T> Default for KeyTable<T> {
    fn default() -> Self {
        Self {
            entries: HashMap::default(),
            retired: VecDeque::new(),
        }
    }
}

impl<T> KeyTable<T> {
    /// Enters `value` under a new key, which is never 0.
    ///
    /// # Errors
    /// What the kernel says if it has no random bytes.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, Errno> {
        loop {
            let key = random_u32()?;
            if key != 0 && !self.entries.contains_key(&key) {
                self.entries.insert(key, Some(value));
                return Ok(key);
            }
        }
    }

    pub(crate) fn get(&self, key: u32) -> Option<&T> {
        self.entries.get(&key)?.as_ref()
    }

    /// Takes out the value of a key, which is retired.
    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.entries.get_mut(&key)?.take()?;
        self.retired.push_back(key);
        if self.retired.len() > RETIRED
            && let Some(key) = self.retired.pop_front()
        {
            self.entries.remove(&key);
        }
        Some(value)
    }

    /// Keys in use.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.retired.len()
    }
}

/// Four bytes of the kernel's random source.
///
/// # Errors
/// What the kernel says if it has none.
pub(crate) fn random_u32() -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    // As few bytes as these come whole, or not at all (getrandom(2)).
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Spreads keys over the table. They are random and chosen by this side, so that nobody can make them collide.
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u32(&mut self, key: u32) {
        // 2^64 / φ: brings the low bits to the top, where the table looks, too.
        self.0 = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(self.0 as u32 ^ u32::from(*byte));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_retired_key_finds_nothing_and_is_not_given_again_soon() {
        let mut table = KeyTable::default();
        let old = table.insert('a').unwrap();
        assert_eq!(table.get(old), Some(&'a'));
        assert_eq!(table.remove(old), Some('a'));
        assert_eq!(table.remove(old), None);
        assert_eq!((table.get(old), table.len()), (None, 0));
        assert!(table.entries.contains_key(&old), "it is kept out of use");
        for _ in 0..2 * RETIRED {
            let key = table.insert('b').unwrap();
            table.remove(key);
        }
        assert_eq!(table.entries.len(), RETIRED, "but not for ever");
    }

    #[test]
    fn keys_use_all_of_their_bits() {
        let mut table = KeyTable::default();
        let keys: HashSet<u32> = (0..256).map(|i| table.insert(i).unwrap()).collect();
        assert_eq!(keys.len(), 256);
        // Each bit is 0 in all of 256 keys with a probability of 2^-256.
        assert_eq!(keys.iter().fold(0, |all, key| all | key), u32::MAX);
        assert_eq!(keys.iter().fold(u32::MAX, |all, key| all & key), 0);
    }
}
