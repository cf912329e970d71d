//! The connections of a worker, by index and by queue pair number.

use std::collections::HashMap;
use std::sync::Arc;

use adverb_verbs::{Qpn, WrId};

use crate::connection::Connection;

/// The place of a connection in its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: u32,
    /// Tells it from connections that had the index before.
    pub(crate) generation: u16,
}

impl Place {
    /// The place of the connection that posted a send with this id.
    pub(crate) fn of(id: WrId) -> Self {
        Self {
            index: id.owner(),
            generation: id.generation(),
        }
    }
}

/// The connections of a worker. A place is taken first, while the connection is being made, and filled later.
#[derive(Debug)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_qpn: HashMap<Qpn, u32>,
    taken: u32,
    limit: u32,
}

#[derive(Debug, Default)]
struct Entry {
    generation: u16,
    connection: Option<Arc<Connection>>,
}

impl Table {
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.min(WrId::OWNERS);
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_qpn: HashMap::new(),
            taken: 0,
            limit,
        }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Places that are taken.
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes a place; `None` if there is none left.
    pub(crate) fn take_place(&mut self) -> Option<Place> {
        if self.taken >= self.limit {
            return None;
        }
        self.taken += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        let generation = self
            .entries
            .get(index as usize)
            .map_or(0, |entry| entry.generation);
        Some(Place { index, generation })
    }

    /// Fills a place.
    pub(crate) fn insert(&mut self, place: Place, connection: Arc<Connection>) {
        self.by_qpn.insert(connection.link.local.qpn, place.index);
        if let Some(entry) = self.entries.get_mut(place.index as usize) {
            entry.connection = Some(connection);
        }
    }

    /// Frees a place, and gives the connection that was there.
    pub(crate) fn free_place(&mut self, index: u32) -> Option<Arc<Connection>> {
        let entry = self.entries.get_mut(index as usize)?;
        entry.generation = entry.generation.wrapping_add(1);
        let connection = entry.connection.take();
        self.free.push(index);
        self.taken -= 1;
        if let Some(connection) = &connection {
            connection.leave();
            self.by_qpn.remove(&connection.link.local.qpn);
        }
        connection
    }

    /// The connection at this place, unless it has left.
    pub(crate) fn get(&self, place: Place) -> Option<&Arc<Connection>> {
        let entry = self.entries.get(place.index as usize)?;
        entry
            .connection
            .as_ref()
            .filter(|_| entry.generation == place.generation)
    }

    pub(crate) fn by_qpn(&self, qpn: Qpn) -> Option<&Arc<Connection>> {
        let index = *self.by_qpn.get(&qpn)?;
        self.entries.get(index as usize)?.connection.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.entries.iter().filter_map(|entry| entry.connection.as_ref())
    }
}
