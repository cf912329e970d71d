//! The libibverbs provider of adverb's verbs.
