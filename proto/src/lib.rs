//! The endpoint protocol of adverb as a sans-IO state machine.
