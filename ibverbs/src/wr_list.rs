//! Lists of work requests as C takes them: linked, on the stack, a batch at a time.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use adverb_verbs::{ErrorKind, PostError, RecvWr, SendWr, Sge, VerbsError};

use crate::{convert, sys};

/// Work requests of one list.
const BATCH: usize = 16;

/// Scatter/gather elements of one list.
const BATCH_SGES: usize = 64;

/// A work request that has a form in C.
pub(crate) trait Request {
    /// Its form in C.
    type Raw;

    /// Its local memory.
    fn sges(&self) -> &[Sge];

    /// Its form in C, with its elements at `sges` and `next` behind it.
    fn raw(&self, sges: *mut sys::ibv_sge, next: *mut Self::Raw) -> Self::Raw;
}

impl Request for SendWr<'_> {
    type Raw = sys::ibv_send_wr;

    fn sges(&self) -> &[Sge] {
        self.sges
    }

    fn raw(&self, sges: *mut sys::ibv_sge, next: *mut Self::Raw) -> Self::Raw {
        convert::send_wr(self, sges, next)
    }
}

impl Request for RecvWr<'_> {
    type Raw = sys::ibv_recv_wr;

    fn sges(&self) -> &[Sge] {
        self.sges
    }

    fn raw(&self, sges: *mut sys::ibv_sge, next: *mut Self::Raw) -> Self::Raw {
        convert::recv_wr(self, sges, next)
    }
}

/// Calls `post` with lists of all of `requests`, in order, until it refuses. `refuse` makes the error.
pub(crate) fn post_all<R: Request>(
    requests: &[R],
    post: impl Fn(*mut R::Raw) -> Result<(), (io::Error, *mut R::Raw)>,
    refuse: impl Fn(ErrorKind) -> VerbsError,
) -> Result<(), PostError> {
    let mut accepted = 0;
    while let rest @ [next, ..] = &requests[accepted..] {
        let n = fitting(rest.iter().map(|request| request.sges().len()));
        if n == 0 {
            let kind = ErrorKind::OutOfRange {
                what: "count of scatter/gather elements",
                value: next.sges().len() as u64,
                limit: BATCH_SGES as u64 + 1,
            };
            return Err(PostError {
                accepted,
                source: refuse(kind),
            });
        }
        let mut sges = [const { MaybeUninit::uninit() }; BATCH_SGES];
        let mut list = [const { MaybeUninit::uninit() }; BATCH];
        // SAFETY: `fitting` says that they fit.
        let first = unsafe { link(&rest[..n], &mut sges, &mut list) };
        if let Err((error, bad)) = post(first) {
            accepted += accepted_before(bad, first, n);
            return Err(PostError {
                accepted,
                source: refuse(ErrorKind::Os(error.raw_os_error().unwrap_or(0))),
            });
        }
        accepted += n;
    }
    Ok(())
}

/// How many requests, of these numbers of elements, fit one list.
fn fitting(sges: impl Iterator<Item = usize>) -> usize {
    let mut used = 0_usize;
    sges.take(BATCH)
        .take_while(|n| {
            used = used.saturating_add(*n);
            used <= BATCH_SGES
        })
        .count()
}

/// Writes the requests to the front of `list` and their elements to the front of `sges`. Gives the first one, which leads to the others.
///
/// # Safety
/// There are no more requests than `list` has places, and no more elements than `sges` has.
unsafe fn link<R: Request>(
    requests: &[R],
    sges: &mut [MaybeUninit<sys::ibv_sge>; BATCH_SGES],
    list: &mut [MaybeUninit<R::Raw>; BATCH],
) -> *mut R::Raw {
    // All access is by these two from here on: the list holds pointers that a borrow would end.
    let mut sge_place = sges.as_mut_ptr().cast::<sys::ibv_sge>();
    let first = list.as_mut_ptr().cast::<R::Raw>();
    for (i, request) in requests.iter().enumerate() {
        let own_sges = sge_place;
        for sge in request.sges() {
            // SAFETY: within `sges`, as the caller counted the elements.
            unsafe { ptr::write(sge_place, convert::sge(sge)) };
            sge_place = sge_place.wrapping_add(1);
        }
        let next = if i + 1 < requests.len() {
            first.wrapping_add(i + 1)
        } else {
            ptr::null_mut()
        };
        // SAFETY: within `list`, as the caller counted the requests.
        unsafe { ptr::write(first.wrapping_add(i), request.raw(own_sges, next)) };
    }
    first
}

/// How many of the `n` requests from `first` on the provider took, if it named `bad` as the one that it did not.
///
/// All of them if it named none: rxe takes the whole list and then fails to ring the doorbell, for example. They may be carried out
/// later, so that their memory must stay where it is until the queue pair is reset or gone.
fn accepted_before<T>(bad: *const T, first: *const T, n: usize) -> usize {
    (0..n).find(|i| ptr::eq(bad, first.wrapping_add(*i))).unwrap_or(n)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use adverb_verbs::{Lkey, SendFlags, SendOp};

    use super::*;

    fn refuse(kind: ErrorKind) -> VerbsError {
        VerbsError::new("ibv_post_send", "test", kind)
    }

    fn elements(n: usize) -> Vec<Sge> {
        let lkey = Lkey::new(5);
        let sge = |i| Sge {
            addr: i as u64,
            length: i as u32,
            lkey,
        };
        (0..n).map(sge).collect()
    }

    fn sends(sges: &[Sge], n: usize) -> Vec<SendWr<'_>> {
        let send = |wr_id| SendWr {
            wr_id,
            op: SendOp::Send,
            sges,
            flags: SendFlags::empty(),
        };
        (0..n as u64).map(send).collect()
    }

    /// The ids and elements of a list, following its links as C does.
    fn walk(mut wr: *const sys::ibv_send_wr) -> Vec<(u64, Vec<u64>)> {
        let mut seen = Vec::new();
        while !wr.is_null() {
            // SAFETY: the list is linked to its end and lies on the caller's stack.
            let this = unsafe { &*wr };
            let sge = |i| {
                let place = this.sg_list.wrapping_add(i);
                // SAFETY: `num_sge` elements lie there.
                unsafe { place.read() }.addr
            };
            seen.push((this.wr_id, (0..this.num_sge as usize).map(sge).collect()));
            wr = this.next;
        }
        seen
    }

    #[test]
    fn a_batch_ends_where_requests_or_elements_do() {
        assert_eq!(fitting([1; 100].into_iter()), BATCH);
        assert_eq!(fitting([30, 30, 4, 1].into_iter()), 3);
        assert_eq!(fitting([65].into_iter()), 0);
        assert_eq!(fitting([usize::MAX, 1].into_iter()), 0);
        assert_eq!(fitting([1, usize::MAX].into_iter()), 1);
        assert_eq!(fitting([].into_iter()), 0);
    }

    #[test]
    fn every_request_reaches_c_once_and_in_order() {
        for (count, elements_each, lists) in [
            (0, 1, 0),
            (1, 0, 1),
            (16, 4, 1),
            (17, 1, 2),
            (40, 3, 3),
            (7, 32, 4),
        ] {
            let sges = elements(elements_each);
            let posted = RefCell::new(Vec::new());
            let post = |first: *mut sys::ibv_send_wr| {
                posted.borrow_mut().push(walk(first));
                Ok(())
            };
            post_all(&sends(&sges, count), post, refuse).unwrap();
            let posted = posted.into_inner();
            assert_eq!(posted.len(), lists);
            let addresses: Vec<_> = (0..elements_each as u64).collect();
            let expected: Vec<_> = (0..count as u64).map(|id| (id, addresses.clone())).collect();
            assert_eq!(posted.concat(), expected);
        }
    }

    #[test]
    fn the_request_that_was_refused_says_how_many_were_accepted() {
        let sges = elements(1);
        for refused in [0_u64, 5, 15, 16, 31, 39] {
            let post = |first: *mut sys::ibv_send_wr| {
                let ids: Vec<u64> = walk(first).into_iter().map(|(id, _)| id).collect();
                match ids.iter().position(|id| *id == refused) {
                    None => Ok(()),
                    Some(i) => Err((io::Error::from_raw_os_error(12), first.wrapping_add(i))),
                }
            };
            let error = post_all(&sends(&sges, 40), post, refuse).unwrap_err();
            assert_eq!(
                (error.accepted as u64, error.source.kind),
                (refused, ErrorKind::Os(12))
            );
        }
    }

    #[test]
    fn a_list_that_fails_as_a_whole_may_still_be_carried_out() {
        let sges = elements(1);
        let post = |_: *mut sys::ibv_send_wr| Err((io::Error::from_raw_os_error(22), ptr::null_mut()));
        let error = post_all(&sends(&sges, 3), post, refuse).unwrap_err();
        assert_eq!((error.accepted, error.source.kind), (3, ErrorKind::Os(22)));
    }

    #[test]
    fn too_many_elements_are_refused_after_what_came_before() {
        let (few, many) = (elements(1), elements(65));
        let mut requests = sends(&few, 2);
        requests.extend(sends(&many, 1));
        let error = post_all(&requests, |_| Ok(()), refuse).unwrap_err();
        assert_eq!(error.accepted, 2);
        let kind = ErrorKind::OutOfRange {
            what: "count of scatter/gather elements",
            value: 65,
            limit: 65,
        };
        assert_eq!(error.source.kind, kind);
    }
}
