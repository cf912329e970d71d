//! Every byte that adverb puts on the network: message headers and the handshake.
