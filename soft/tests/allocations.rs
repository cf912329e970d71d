//! What a message costs in the device: once warm, posting, arming, polling and whatever packets do allocate nothing.

#[cfg(test)]
mod common;

use adverb_testing::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use adverb_soft::{SimFaults, SimNetwork, SoftConfig, SoftProvider};
    use adverb_testing::allocations;
    use adverb_verbs::{Buffer, SendFlags, SendOp, SendRequest, WcStatus, WorkCompletion};

    use crate::common::{Link, SLOT, pair};

    /// Long enough for a message and its acknowledgement.
    const STEP: Duration = Duration::from_micros(20);

    #[test]
    fn a_warm_message_allocates_nothing() {
        let network = SimNetwork::new(SimFaults::default());
        let provider = SoftProvider::simulated(SoftConfig::default(), &network);
        let (mut a, mut b) = pair(&provider, Link::default());
        let (mut slots, mut requests) = (Vec::with_capacity(1), Vec::with_capacity(1));
        let mut completions = [WorkCompletion::EMPTY; 4];
        let mut round = |flags: SendFlags, len: usize| {
            slots.push(b.pool.take().unwrap());
            b.rq.post(&mut slots).unwrap();
            b.recv_cq.req_notify(true).unwrap();
            let mut request = SendRequest::new(SendOp::Send).flags(flags | SendFlags::SIGNALED);
            request.push(Buffer::slot(a.pool.take().unwrap(), len)).unwrap();
            requests.push(request);
            a.sq.post(&mut requests).unwrap();
            network.advance(STEP);

            assert_eq!(b.recv_cq.poll(&mut completions), Ok(1));
            assert_eq!(b.rq.complete(&completions[0]).unwrap().len, len);
            let event = b.channel.next_event().unwrap();
            assert_eq!(event.is_some(), flags.contains(SendFlags::SOLICITED));
            b.recv_cq.ack_events();
            assert_eq!(a.send_cq.poll(&mut completions), Ok(1));
            assert_eq!(completions[0].status, WcStatus::Success);
            assert_eq!(a.sq.complete(&completions[0], drop), 1);
        };
        let kinds = [
            (SendFlags::empty(), SLOT),
            (SendFlags::SOLICITED, 100),
            (SendFlags::INLINE, 64),
        ];
        let mut rounds =
            |n: u32| (0..n).for_each(|_| kinds.iter().for_each(|(flags, len)| round(*flags, *len)));
        // What is made once: queues that grow to their size.
        rounds(100);
        let before = allocations();
        rounds(10_000);
        assert_eq!(allocations(), before);
    }
}
