//! Room for submissions that wait to become durable, in KiB.
//!
//! A principal may have as much as is free: one that submits more than the store takes has half of the room, two have a third each, however many
//! connections they open. What processes submit, and what nobody judged, is bounded by the room alone.

use std::sync::Arc;

use godel_kit::room::{Room, Share, ShareByName, Taken};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// See the module. Of one term.
#[derive(Debug)]
pub(crate) struct AdmissionRoom {
    queue: Arc<Semaphore>,
    principals: ShareByName,
}

/// Room of one submission, until it is dropped.
#[derive(Debug)]
pub(crate) struct RoomTaken {
    _queue: OwnedSemaphorePermit,
    _of_principal: Option<Taken>,
}

impl AdmissionRoom {
    pub(crate) fn new(kib: usize) -> Arc<Self> {
        let kib = kib.min(Semaphore::MAX_PERMITS);
        let principals = ShareByName::new(Room::new(kib));
        Arc::new(Self { queue: Arc::new(Semaphore::new(kib)), principals })
    }

    /// What a principal has of it; `None`: no person submits.
    pub(crate) fn share(&self, principal: Option<&str>) -> Option<Share> {
        principal.map(|name| self.principals.share(name))
    }

    /// Room that is free now.
    pub(crate) fn take_now(&self, share: Option<&Share>, kib: u32) -> Option<RoomTaken> {
        let of_principal = share.map(|share| share.try_take(as_usize(kib)).ok_or(())).transpose().ok()?;
        let queue = Arc::clone(&self.queue).try_acquire_many_owned(kib).ok()?;
        Some(RoomTaken { _queue: queue, _of_principal: of_principal })
    }

    /// Room, once it is free.
    ///
    /// # Errors
    /// The term is over.
    pub(crate) async fn take(&self, share: Option<&Share>, kib: u32) -> Result<RoomTaken, AcquireError> {
        // First that of the principal: while it waits for this it keeps nothing from others.
        let of_principal = match share {
            Some(share) => Some(share.take(as_usize(kib)).await),
            None => None,
        };
        let queue = Arc::clone(&self.queue).acquire_many_owned(kib).await?;
        Ok(RoomTaken { _queue: queue, _of_principal: of_principal })
    }
}

fn as_usize(kib: u32) -> usize {
    usize::try_from(kib).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::Pin, task::Poll};

    use super::*;

    #[tokio::test]
    async fn a_principal_has_half_of_the_room_and_leaves_the_rest_to_others() {
        let room = AdmissionRoom::new(64);
        let take = |principal: Option<&str>| {
            let mut taken = Vec::new();
            while let Some(more) = room.take_now(room.share(principal).as_ref(), 4) {
                taken.push(more);
            }
            taken
        };
        // Also when it asks by another connection.
        let mut of_ann = take(Some("ann"));
        assert_eq!(of_ann.len(), 8);
        assert!(take(Some("ann")).is_empty());
        let of_bob = take(Some("bob"));
        assert_eq!(of_bob.len(), 4, "half of what is left");
        // A process takes what there is, and then there is none for anybody.
        let of_process = take(None);
        assert_eq!(of_process.len(), 4);
        assert!(take(Some("eve")).is_empty());
        // Whoever waits goes on when its own is given back.
        let share = room.share(Some("ann"));
        let waiting = room.take(share.as_ref(), 4);
        tokio::pin!(waiting);
        assert!(has_to_wait(waiting.as_mut()).await);
        of_ann.truncate(5);
        drop(of_bob);
        waiting.await.unwrap();
    }

    /// Whether a future has to wait.
    async fn has_to_wait<T>(mut future: Pin<&mut impl Future<Output = T>>) -> bool {
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
    }
}
