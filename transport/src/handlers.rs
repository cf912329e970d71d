//! What a program does with what comes.

use std::fmt;
use std::sync::Arc;

use crate::{Endpoint, Message, Request};

/// Takes messages.
type MessageHandler = dyn Fn(&Endpoint, Message) + Send + Sync;
/// Takes requests.
type RequestHandler = dyn Fn(&Endpoint, Request) + Send + Sync;

/// What is done with messages and with requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handlers {
    pub(crate) messages: ById<MessageHandler>,
    pub(crate) requests: ById<RequestHandler>,
}

/// Handlers by message id, sorted.
pub(crate) struct ById<H: ?Sized>(Vec<(u16, Arc<H>)>);

impl<H: ?Sized> Clone for ById<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<H: ?Sized> Default for ById<H> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<H: ?Sized> fmt::Debug for ById<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(id, _)| id)).finish()
    }
}

impl<H: ?Sized> ById<H> {
    pub(crate) fn get(&self, id: u16) -> Option<&Arc<H>> {
        let place = self.0.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.0.get(place).map(|(_, handler)| handler)
    }

    pub(crate) fn set(&mut self, id: u16, handler: Arc<H>) {
        match self.0.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(place) => self.0[place].1 = handler,
            Err(place) => self.0.insert(place, (id, handler)),
        }
    }
}
