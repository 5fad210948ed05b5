//! The records of the store: one table, from which records, their kinds and their keys follow.
//!
//! What a deletion takes along, who writes a kind and how it is encoded is in the table of the wire, whose numbers and names are the same.

use std::{fmt, sync::Arc};

use crate::{
    budget_spec::BudgetSpec,
    change::{Block, Change, Lease, Partition},
    hold::Hold,
    node::{NodeAllocatable, NodeReport, NodeSpec, NodeUsage},
    pause::Pause,
    queue_spec::{PriorityClass, QueueSpec},
    reservation_spec::ReservationSpec,
    task_group_record::{TaskGroupKey, TaskGroupRecord},
    unit::UnitRecord,
    unit_history::UnitHistory,
    yarn_keys::YarnKeys,
};
use godel_base::ids::{HoldId, NODE_ID_MAX, NodeId, UnitId};

/// A key as the store files records by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoredKey {
    /// A number.
    Id(u64),
    /// A name.
    Name(String),
}

/// A key of one kind of record.
trait Key: Sized {
    /// `None`: it is no key of the kind.
    fn read(stored: StoredKey) -> Option<Self>;

    fn stored(&self) -> StoredKey;
}

/// The key of a record that one service alone reads: others learn nothing of what it says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForeignKey {
    /// The kind of the record.
    pub kind: RecordKind,
    /// The key within its kind.
    pub key: StoredKey,
}

macro_rules! records {
    (
        [$($(#[$doc:meta])* $kind:ident = $number:literal $title:literal: $record:ty $(, $key:ty => |$it:ident| $of:expr)?;)*]
        [$($(#[$foreign_doc:meta])* $foreign:ident = $foreign_number:literal $foreign_title:literal;)*]
    ) => {
        /// A kind of record. Its number is that of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RecordKind {
            $($(#[$doc])* $kind = $number,)*
            $($(#[$foreign_doc])* $foreign = $foreign_number,)*
            /// The running units of a unit.
            Rows = 20,
        }

        impl RecordKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind,)* $(Self::$foreign,)* Self::Rows];

            /// Returns the name of the kind in messages.
            pub fn title(self) -> &'static str {
                match self {
                    $(Self::$kind => $title,)*
                    $(Self::$foreign => $foreign_title,)*
                    Self::Rows => "rows of unit",
                }
            }
        }

        /// A record, whole.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Record {
            $($(#[$doc])* $kind($record),)*
            /// A record that one service alone reads.
            Foreign(ForeignKey),
        }

        /// The key of a record, with its kind.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RecordKey {
            $($(#[$doc])* $kind $(($key))?,)*
            /// A record that one service alone reads.
            Foreign(ForeignKey),
            /// Rows of a unit, or an operation on them.
            Rows(UnitId),
            /// A record of which nobody can tell which one it is.
            Unknown,
        }

        impl Record {
            /// Returns the kind of the record.
            pub fn kind(&self) -> RecordKind {
                match self {
                    $(Self::$kind(_) => RecordKind::$kind,)*
                    Self::Foreign(key) => key.kind,
                }
            }

            /// Returns the key of the record.
            pub fn key(&self) -> RecordKey {
                match self {
                    $(Self::$kind(_record) => RecordKey::$kind $(({ let $it = _record; $of }))?,)*
                    Self::Foreign(key) => RecordKey::Foreign(key.clone()),
                }
            }
        }

        impl RecordKey {
            /// Returns the kind of the record; `None` for one of which nobody can tell.
            pub fn kind(&self) -> Option<RecordKind> {
                Some(match self {
                    $(records!(@any $kind $($key)?) => RecordKind::$kind,)*
                    Self::Foreign(key) => key.kind,
                    Self::Rows(_) => RecordKind::Rows,
                    Self::Unknown => return None,
                })
            }

            /// Returns the key as the store files the record by it; `None` for one that has none.
            pub fn stored(&self) -> Option<StoredKey> {
                match self {
                    $(records!(@bound $kind _key $($key)?) => records!(@stored _key $($key)?),)*
                    Self::Foreign(key) => Some(key.key.clone()),
                    Self::Rows(unit) => Some(unit.stored()),
                    Self::Unknown => None,
                }
            }

            /// Reads the key by which the store files a record; `None` if it is no key of the kind.
            pub fn read(kind: RecordKind, stored: StoredKey) -> Option<Self> {
                Some(match kind {
                    $(RecordKind::$kind => records!(@read $kind stored $($key)?),)*
                    RecordKind::Rows => Self::Rows(Key::read(stored)?),
                    $(RecordKind::$foreign)|* => Self::Foreign(ForeignKey { kind, key: stored }),
                })
            }
        }
    };
    (@any $kind:ident) => { Self::$kind };
    (@any $kind:ident $key:ty) => { Self::$kind(_) };
    (@bound $kind:ident $name:ident) => { Self::$kind };
    (@bound $kind:ident $name:ident $key:ty) => { Self::$kind($name) };
    (@stored $name:ident) => { None };
    (@stored $name:ident $key:ty) => { Some($name.stored()) };
    (@read $kind:ident $stored:ident) => { Self::$kind };
    (@read $kind:ident $stored:ident $key:ty) => { Self::$kind(Key::read($stored)?) };
}

records! {
    [
    /// An administrator's record of a node.
    NodeSpec = 1 "node spec": NodeSpec, NodeId => |it| it.id;
    /// An agent's record of a node.
    NodeReport = 2 "node report": NodeReport, NodeId => |it| it.id;
    /// Allocatable in force on a node.
    NodeAllocatable = 3 "node allocatable": NodeAllocatable, NodeId => |it| it.id;
    /// The measured use of a node, with what it leaves to best-effort running units.
    NodeUsage = 12 "node usage": NodeUsage, NodeId => |it| it.id;
    /// A unit: of the store its own record, for deciders whole.
    Unit = 4 "unit": Arc<UnitRecord>, UnitId => |it| it.id;
    /// A task group that was added to a unit. Deciders see it as part of its unit, see [`crate::task_group_record`].
    TaskGroup = 18 "task group": Arc<TaskGroupRecord>, TaskGroupKey => |it| TaskGroupKey { unit: it.unit, idx: it.idx };
    /// The history of a unit that was deleted.
    UnitHistory = 17 "unit history": Arc<UnitHistory>, UnitId => |it| it.id;
    /// A queue, by its path.
    Queue = 7 "queue": Arc<QueueSpec>, String => |it| it.name.clone();
    /// A priority class, by its name.
    PriorityClass = 8 "priority class": PriorityClass, String => |it| it.name.clone();
    /// A disruption budget, by its name.
    Budget = 13 "disruption budget": Arc<BudgetSpec>, String => |it| it.name.clone();
    /// A reservation, by its name.
    Reservation = 14 "reservation": Arc<ReservationSpec>, String => |it| it.name.clone();
    /// A pause, by its scope as it is written.
    Pause = 10 "pause": Pause, String => |it| it.scope.to_string();
    /// Room kept for someone.
    Hold = 9 "hold": Arc<Hold>, HoldId => |it| it.id;
    /// A lease, by its name: one that nobody holds is gone.
    Lease = 5 "lease": Lease, String => |it| it.name.clone();
    /// How nodes are split over schedulers.
    Partition = 6 "partition": Partition;
    /// The owners of the nodes of a block, by its number: a block without owners is gone.
    PartitionBlock = 15 "partition block": Block, BlockNumber => |it| BlockNumber(it.number);
    /// Keys of YARN's tokens, by what the tokens are for: a record without keys is gone.
    YarnKeys = 19 "YARN keys": YarnKeys, String => |it| it.name.clone();
    ]
    [
    /// An application of YARN, which the YARN adapter reads.
    YarnApplication = 27 "YARN application";
    /// A movement, which the rescheduler reads.
    Movement = 29 "movement";
    /// When replicas of a unit were moved, which the rescheduler reads.
    MoveRate = 30 "move rate";
    /// What everybody trusts, which state reads; others ask it.
    TrustRoots = 31 "trust roots";
    /// The sealed keys of the CA, which state keeps to itself.
    SealedSigner = 32 "sealed signer";
    /// An identity, which state reads; others ask it.
    Identity = 33 "identity";
    /// A join token, which state keeps to itself.
    JoinToken = 34 "join token";
    /// A principal, which state reads; others ask it.
    Principal = 35 "principal";
    /// A token of a principal, which state reads; others ask it.
    PersonToken = 36 "token of a person";
    /// A line of the change log, which state reads; others ask it.
    Change = 37 "change";
    ]
}

/// The number of a block of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNumber(pub u32);

impl RecordKind {
    /// Returns the kind with a number of the API.
    pub fn of_number(number: i32) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| *kind as i32 == number)
    }

    /// Whether state keeps its records to itself: nobody can list or watch them.
    pub fn is_hidden(self) -> bool {
        matches!(self, Self::SealedSigner | Self::JoinToken)
    }

    /// Whether its records are about one node, and go with it.
    pub fn is_of_node(self) -> bool {
        matches!(self, Self::NodeSpec | Self::NodeReport | Self::NodeAllocatable | Self::NodeUsage)
    }
}

impl Record {
    /// Returns the node that the record is about.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Self::NodeSpec(spec) => Some(spec.id),
            Self::NodeReport(report) => Some(report.id),
            Self::NodeAllocatable(allocatable) => Some(allocatable.id),
            Self::NodeUsage(usage) => Some(usage.id),
            _ => None,
        }
    }

    /// Returns the unit that the record is a part of: its own record, or a task group that was added to it.
    pub fn unit(&self) -> Option<UnitId> {
        match self {
            Self::Unit(record) => Some(record.id),
            Self::TaskGroup(group) => Some(group.unit),
            _ => None,
        }
    }
}

impl Record {
    /// Whether it says no more than that there is none: a block without owners, a name without keys. The store deletes these.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::PartitionBlock(block) => block.slots.is_empty(),
            Self::YarnKeys(keys) => keys.keys.is_empty(),
            _ => false,
        }
    }
}

impl RecordKey {
    /// Returns the change that its deletion is for followers. Without a record nobody holds a lease, nothing is split, and no key
    /// signs: of these kinds it is a put.
    pub fn gone(self) -> Change {
        Change::Put(match self {
            Self::Lease(name) => Record::Lease(Lease { name, ..Lease::default() }),
            Self::Partition => Record::Partition(Partition::default()),
            Self::PartitionBlock(number) => {
                Record::PartitionBlock(Block { number: number.0, slots: Vec::new() })
            }
            Self::YarnKeys(name) => Record::YarnKeys(YarnKeys { name, keys: Vec::new() }),
            gone => return Change::Gone(gone),
        })
    }

    /// Returns the keys of all records of a node.
    pub fn all_of_node(node: NodeId) -> [Self; 4] {
        [Self::NodeSpec(node), Self::NodeReport(node), Self::NodeAllocatable(node), Self::NodeUsage(node)]
    }

    /// Returns the node that the record is about.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Self::NodeSpec(node)
            | Self::NodeReport(node)
            | Self::NodeAllocatable(node)
            | Self::NodeUsage(node) => Some(*node),
            _ => None,
        }
    }

    /// Returns the unit that the record is a part of: its own record, a task group that was added to it, or its rows.
    pub fn unit(&self) -> Option<UnitId> {
        match self {
            Self::Unit(unit) | Self::Rows(unit) => Some(*unit),
            Self::TaskGroup(group) => Some(group.unit),
            _ => None,
        }
    }

    /// Returns the name of its kind in messages.
    pub fn title(&self) -> &'static str {
        self.kind().map_or("unknown record", RecordKind::title)
    }

    /// Returns the key as text; empty where there is none.
    pub fn text(&self) -> String {
        match self.stored() {
            None => String::new(),
            Some(StoredKey::Id(id)) => id.to_string(),
            Some(StoredKey::Name(name)) => name,
        }
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.text();
        f.write_str(self.title())?;
        if key.is_empty() { Ok(()) } else { write!(f, " {key}") }
    }
}

macro_rules! numbers {
    ($($key:ty),*) => {
        $(impl Key for $key {
            fn read(stored: StoredKey) -> Option<Self> {
                match stored {
                    StoredKey::Id(id) => id.try_into().ok().map(Self),
                    StoredKey::Name(_) => None,
                }
            }

            fn stored(&self) -> StoredKey {
                StoredKey::Id(self.0.into())
            }
        })*
    };
}

numbers!(NodeId, UnitId, HoldId);

impl Key for BlockNumber {
    /// Blocks are filed from 1.
    fn read(stored: StoredKey) -> Option<Self> {
        match stored {
            StoredKey::Id(id) => {
                let number = u32::try_from(id.checked_sub(1)?).ok()?;
                (number <= Block::of(NodeId(NODE_ID_MAX))).then_some(Self(number))
            }
            StoredKey::Name(_) => None,
        }
    }

    fn stored(&self) -> StoredKey {
        StoredKey::Id(u64::from(self.0) + 1)
    }
}

impl Key for String {
    fn read(stored: StoredKey) -> Option<Self> {
        match stored {
            StoredKey::Id(_) => None,
            StoredKey::Name(name) => Some(name),
        }
    }

    fn stored(&self) -> StoredKey {
        StoredKey::Name(self.clone())
    }
}

impl Key for TaskGroupKey {
    fn read(stored: StoredKey) -> Option<Self> {
        let StoredKey::Name(name) = stored else { return None };
        let (unit, idx) = name.split_once('/')?;
        Some(Self { unit: UnitId(unit.parse().ok().filter(|unit| *unit != 0)?), idx: idx.parse().ok()? })
    }

    fn stored(&self) -> StoredKey {
        StoredKey::Name(format!("{}/{}", self.unit, self.idx))
    }
}
