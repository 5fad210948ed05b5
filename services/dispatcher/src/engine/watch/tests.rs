use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use godel_domain::{
    sight::Sight,
    submission::{GroupSubmission, Submission},
    txn::Receipt,
    unit::UnitRecord,
};
use godel_kit::room::{Messages, Room};
use godel_rules::admission::admit;
use tokio_stream::Stream as _;

use super::*;

const N_UNITS: u64 = 600;

fn unit(id: u64) -> Arc<UnitRecord> {
    let requests = vec![("cpu".into(), 100)];
    let group = GroupSubmission { replicas: 1, requests, ..GroupSubmission::default() };
    let submission = Submission {
        name: format!("u{id}"),
        uid: format!("0190163d-8694-739b-aea5-{id:012x}"),
        task_groups: vec![group],
        ..Submission::default()
    };
    Arc::new(UnitRecord::new(UnitId(id), admit(submission).unwrap().spec))
}

fn core() -> Dispatcher {
    let mut core = Dispatcher::new(godel_core_dispatcher::Config::default());
    core.on_reset();
    for id in 1..=N_UNITS {
        core.on_unit(unit(id), Revision(id), Receipt { revision: Revision(id), time_ms: 0 }, Millis(0));
    }
    core.on_synced(Revision(N_UNITS), Millis(0));
    core
}

struct Reader(Messages<v1::WatchUnitsResponse, Status>);

impl Reader {
    fn open(watches: &mut Watches, core: &Dispatcher, share: &Share) -> Self {
        Self::open_within(watches, core, share, &Sight::All)
    }

    fn open_within(watches: &mut Watches, core: &Dispatcher, share: &Share, sight: &Sight) -> Self {
        let (messages, stream) = Messages::channel(4);
        let (namespace, name) = (String::new(), String::new());
        let call = WatchCall {
            namespace,
            name,
            sight: sight.clone(),
            from: Revision(0),
            messages,
            share: share.clone(),
        };
        watches.open(core, call, None, Millis(0));
        Self(stream)
    }

    fn next(&mut self) -> Option<v1::WatchUnitsResponse> {
        let next = Pin::new(&mut self.0).poll_next(&mut Context::from_waker(Waker::noop()));
        match next {
            Poll::Ready(Some(message)) => Some(message.unwrap()),
            Poll::Ready(None) | Poll::Pending => None,
        }
    }
}

#[test]
fn the_present_state_goes_out_in_parts_as_it_is_read() {
    let mut core = core();
    let mut watches = Watches::new(1_000, StoreId(7));
    // Room for one message: whoever holds nothing gets one.
    let room = Room::new(1);
    let share = room.share();
    let mut readers: Vec<Reader> = (0..20).map(|_| Reader::open(&mut watches, &core, &share)).collect();
    watches.flush(&core, Millis(0));
    let begun = readers.iter_mut().filter_map(Reader::next).count();
    assert_eq!(begun, 1, "nothing is made for the other readers of this client");
    assert!(watches.next_wake() > Some(Millis(0)), "they are looked at again, later");
    // A unit that changes before it was listed comes once, as it is then.
    let created = Receipt { revision: Revision(N_UNITS), time_ms: 0 };
    core.on_unit(unit(N_UNITS), Revision(N_UNITS + 1), created, Millis(0));
    watches.touch(&core, UnitId(N_UNITS));
    let mut seen: Vec<BTreeMap<u64, u32>> = vec![BTreeMap::new(); readers.len()];
    let mut complete = vec![0; readers.len()];
    // The first message of the first reader is gone.
    for id in 1..=UNITS_PER_MESSAGE as u64 {
        seen[0].insert(id, 1);
    }
    let mut now = Millis(0);
    while complete.contains(&0) {
        now = now.plus(1_000);
        watches.flush(&core, now);
        for (idx, reader) in readers.iter_mut().enumerate() {
            while let Some(message) = reader.next() {
                complete[idx] = message.revision;
                message.units.iter().for_each(|unit| *seen[idx].entry(unit.unit_id).or_default() += 1);
            }
        }
    }
    for units in seen {
        assert_eq!((units.len() as u64, units.values().max()), (N_UNITS, Some(&1)));
    }
    assert_eq!(room.used(), 0);
}

#[test]
fn what_waits_for_a_slow_reader_is_bounded() {
    let core = core();
    let mut watches = Watches::new(1_000, StoreId(7));
    let room = Room::new(1 << 20);
    let (slow, other) = (room.share(), room.share());
    let _slow: Vec<Reader> = (0..500).map(|_| Reader::open(&mut watches, &core, &slow)).collect();
    let mut reader = Reader::open(&mut watches, &core, &other);
    for step in 0..50 {
        watches.flush(&core, Millis(step * 1_000));
    }
    assert!(slow.held() <= (1 << 19) + BYTES_PER_MESSAGE, "{}", slow.held());
    assert!(reader.next().is_some(), "another client is served");
}

#[test]
fn a_watch_shows_and_names_units_in_sight_alone() {
    let mut core = core();
    let mut watches = Watches::new(1_000, StoreId(7));
    let room = Room::new(1 << 20);
    let share = room.share();
    let (own, foreign) = (Sight::of(["default".to_owned()]), Sight::of(["prod".to_owned()]));
    let mut all = Reader::open(&mut watches, &core, &share);
    let mut insider = Reader::open_within(&mut watches, &core, &share, &own);
    let mut outsider = Reader::open_within(&mut watches, &core, &share, &foreign);
    let mut shown = |watches: &mut Watches, core: &Dispatcher, now: u64| {
        for step in 0..10 {
            watches.flush(core, Millis(now + step * 1_000));
        }
        [&mut all, &mut insider, &mut outsider].map(|reader| {
            let messages: Vec<_> = std::iter::from_fn(|| reader.next()).collect();
            let n_units: usize = messages.iter().map(|message| message.units.len()).sum();
            let n_deleted: usize = messages.iter().map(|message| message.deleted.len()).sum();
            (n_units > 0, n_deleted, messages.is_empty())
        })
    };
    let first = shown(&mut watches, &core, 0);
    assert_eq!(first, [(true, 0, false), (true, 0, false), (false, 0, false)], "bookmarks come to all");
    // Changes and deletions too.
    let created = Receipt { revision: Revision(1), time_ms: 0 };
    core.on_unit(unit(1), Revision(N_UNITS + 1), created, Millis(0));
    watches.touch(&core, UnitId(1));
    watches.gone(&core, UnitId(2), Revision(N_UNITS + 2));
    let second = shown(&mut watches, &core, 60_000);
    assert_eq!(
        second.map(|(has_units, n_deleted, _)| (has_units, n_deleted)),
        [(true, 1), (true, 1), (false, 0)]
    );
}
