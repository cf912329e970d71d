//! An RDMA messaging transport: active messages over RC queue pairs.
