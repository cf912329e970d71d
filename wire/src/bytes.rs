//! A cursor that reads little-endian integers and one that writes them, neither of which can panic.

/// Reads fields from the front of a slice. Every method returns `None`, and reads nothing, if too few bytes are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What has not been read.
    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    pub(crate) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Writes fields one after the other into a buffer.
///
/// The users' buffers are arrays that hold the longest thing they encode, so that the end is never reached;
/// were it reached, the field would be left out rather than the process brought down.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub(crate) const fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0 }
    }

    /// How many bytes have been written.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn slice(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        debug_assert!(
            end <= self.out.len(),
            "an encoder's buffer holds its longest output"
        );
        if let Some(field) = self.out.get_mut(self.len..end) {
            field.copy_from_slice(bytes);
            self.len = end;
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self, value: u8) {
        self.slice(&value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn u16(&mut self, value: u16) {
        self.slice(&value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn u32(&mut self, value: u32) {
        self.slice(&value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn u64(&mut self, value: u64) {
        self.slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_past_the_end_takes_nothing() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.u16(), Some(0x0201));
        assert_eq!(reader.u32(), None);
        assert_eq!(reader.rest(), [3]);
        assert_eq!(reader.slice(2), None);
        assert_eq!(reader.array(), Some([3]));
        assert_eq!(reader.array::<1>(), None);
        assert_eq!(reader.slice(0), Some(&[][..]));
    }

    #[test]
    fn fields_are_written_low_byte_first() {
        let mut out = [0xff; 16];
        let mut writer = Writer::new(&mut out);
        writer.u8(1);
        writer.u16(2);
        writer.u32(3);
        writer.u64(4);
        assert_eq!(writer.len(), 15);
        assert_eq!(out, [1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0xff]);
    }
}
