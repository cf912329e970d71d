//! Newtypes of the verbs and of RoCEv2: Gid, Qpn, Psn, Mtu, Rkey.
