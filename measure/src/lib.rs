//! Histograms, CPU time and result rows, shared by am_pingpong and the benches.
