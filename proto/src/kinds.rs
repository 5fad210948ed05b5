//! The table of record kinds: what every part has to know of a kind, whatever its records mean.
//!
//! Roles of writers, what a node's deletion takes along, keys, lists, snapshots, names in errors and the reading of encoded
//! records follow from [`KINDS`]. A new kind is a line here and its messages in `state.proto`; `CONTRIBUTING.md` says where
//! its meaning goes.

use bytes::Bytes;
use prost::{DecodeError, Message as _};

use crate::v1::{self, Kind, op::Op, record::Record};

/// What identifies a record among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyForm {
    /// The id of a node: 32 bits, not 0.
    Node,
    /// A number, not 0.
    Id,
    /// A name, not empty.
    Name,
}

/// Which part of godel writes the records of a kind; the store refuses others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The leading dispatcher.
    Dispatcher,
    /// The leading binder.
    Binder,
    /// The leading YARN adapter.
    Yarn,
    /// The leading rescheduler.
    Rescheduler,
    /// State, for an agent's session.
    Agent,
    /// State, for an administrator's call; an agent creates the record when its node registers.
    Admin,
    /// State itself. Nobody deletes such a record.
    State,
    /// State itself, for joins, renewals and administrators' calls on identities. No transaction of others touches such a record.
    Identities,
    /// State itself, for the change log. No transaction of others puts or deletes such a record.
    Changes,
    /// Several, by operations that change parts of a record (`Bind`, `Evict`, `RunStatuses`, `Requeue`,
    /// `TermsChange`, `Compaction`).
    Operations,
}

/// One kind of record.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo {
    /// Its number: also that of the field of `Op` that puts such a record, and ten less than that of the field of `Record`.
    pub kind: Kind,
    /// The name of its field in `Record`, as `node_spec`.
    pub name: &'static str,
    /// The name of the field in `Op` that puts such a record, as `put_node_spec`.
    pub put: &'static str,
    /// The name of its message.
    pub message: &'static str,
    /// The form of its key.
    pub key: KeyForm,
    /// The path of the field that has the key.
    pub key_field: &'static str,
    /// Who writes its records.
    pub owner: Owner,
    /// Its records are about one node, have the node's id as key, and go when the node is deleted.
    pub of_node: bool,
}

/// An operation, by whether it puts a whole record.
#[derive(Clone, Debug, PartialEq)]
pub enum PutOrOther {
    /// It puts this one.
    Put(Record),
    /// It deletes a record, or changes rows.
    Other(Op),
}

/// The key of a record within its kind: ids before names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Of kinds with the form [`KeyForm::Node`] or [`KeyForm::Id`].
    Id(u64),
    /// Of kinds with the form [`KeyForm::Name`].
    Name(String),
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl From<u32> for Key {
    fn from(id: u32) -> Self {
        Self::Id(id.into())
    }
}

impl From<u64> for Key {
    fn from(id: u64) -> Self {
        Self::Id(id)
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

/// The first field of a unit's record: the largest record is not decoded for its key.
#[derive(Clone, PartialEq, prost::Message)]
struct UnitKey {
    #[prost(uint64, tag = "1")]
    unit_id: u64,
}

/// The key of a task group's record: what begins with the id of a unit and `/` is of the unit.
pub fn task_group_key(unit: u64, task_group: u32) -> String {
    if unit == 0 { String::new() } else { format!("{unit}/{task_group}") }
}

macro_rules! kinds {
    ($($kind:ident($message:ident) $name:literal $($put:ident)?, $form:ident $field:literal $key:ty => |$record:ident| $of:expr, $owner:ident, of_node: $of_node:literal;)*) => {
        /// Every kind, in the order in which records are listed and kept in snapshots.
        pub const KINDS: [KindInfo; N_KINDS] = [
            $(KindInfo {
                kind: Kind::$kind,
                name: $name,
                put: concat!("put_", $name),
                message: stringify!($message),
                key: KeyForm::$form,
                key_field: $field,
                owner: Owner::$owner,
                of_node: $of_node,
            },)*
        ];

        /// Returns the kind of a record.
        pub fn kind_of(record: &Record) -> Kind {
            match record {
                $(Record::$kind(_) => Kind::$kind,)*
            }
        }

        /// Tells operations that put a whole record from others.
        pub fn put_or_other(op: Op) -> PutOrOther {
            match op {
                $($(Op::$put(record) => PutOrOther::Put(Record::$kind(record)),)?)*
                other => PutOrOther::Other(other),
            }
        }

        /// Returns the operation that puts a record; `None` for rows, which are written in parts.
        pub fn put_op(record: Record) -> Option<Op> {
            match record {
                $($(Record::$kind(record) => Some(Op::$put(record)),)?)*
                Record::Rows(_) => None,
            }
        }

        /// Decodes the value of a record; `None` for [`Kind::Unspecified`].
        ///
        /// # Errors
        /// The value is not an encoding of the kind's message.
        pub fn decode(kind: Kind, value: Bytes) -> Result<Option<Record>, DecodeError> {
            Ok(Some(match kind {
                Kind::Unspecified => return Ok(None),
                $(Kind::$kind => Record::$kind(v1::$message::decode(value)?),)*
            }))
        }

        /// Encodes the value of a record.
        pub fn encode(record: &Record) -> Bytes {
            match record {
                $(Record::$kind(value) => value.encode_to_vec().into(),)*
            }
        }

        /// Reads the key from the encoded value of a record, whatever it is; `None` for [`Kind::Unspecified`].
        ///
        /// # Errors
        /// The value is not an encoding of the kind's message.
        pub fn key_of(kind: Kind, value: Bytes) -> Result<Option<Key>, DecodeError> {
            Ok(Some(match kind {
                Kind::Unspecified => return Ok(None),
                $(Kind::$kind => {
                    let $record = <$key>::decode(value)?;
                    Key::from($of)
                })*
            }))
        }
    };
}

/// How many kinds there are.
pub const N_KINDS: usize = 28;
/// How many kinds of records are written whole.
pub const N_WHOLE: usize = N_KINDS - 1;

kinds! {
    NodeSpec(NodeSpec) "node_spec" PutNodeSpec, Node "node_id" v1::NodeSpec => |it| it.node_id, Admin, of_node: true;
    NodeReport(NodeReport) "node_report" PutNodeReport, Node "node_id" v1::NodeReport => |it| it.node_id, Agent, of_node: true;
    NodeAllocatable(NodeAllocatable) "node_allocatable" PutNodeAllocatable, Node "node_id" v1::NodeAllocatable => |it| it.node_id, Binder, of_node: true;
    TaskGroup(TaskGroupRecord) "task_group" PutTaskGroup, Name "task_group" v1::TaskGroupRecord => |it| task_group_key(it.unit_id, it.task_group), Dispatcher, of_node: false;
    Unit(UnitRecord) "unit" PutUnit, Id "unit_id" UnitKey => |it| it.unit_id, Dispatcher, of_node: false;
    Lease(LeaseRecord) "lease" PutLease, Name "lease" v1::LeaseRecord => |it| it.lease, State, of_node: false;
    Partition(Partition) "partition" PutPartition, Name "name" v1::Partition => |it| it.name, Dispatcher, of_node: false;
    Queue(Queue) "queue" PutQueue, Name "meta.name" v1::Queue => |it| it.meta.unwrap_or_default().name, Dispatcher, of_node: false;
    PriorityClass(PriorityClass) "priority_class" PutPriorityClass, Name "name" v1::PriorityClass => |it| it.name, Dispatcher, of_node: false;
    Hold(Hold) "hold" PutHold, Id "hold_id" v1::Hold => |it| it.hold_id, Binder, of_node: false;
    Pause(Pause) "pause" PutPause, Name "scope" v1::Pause => |it| it.scope, Dispatcher, of_node: false;
    NodeUsage(NodeUsage) "node_usage" PutNodeUsage, Node "node_id" v1::NodeUsage => |it| it.node_id, Agent, of_node: true;
    DisruptionBudget(DisruptionBudget) "disruption_budget" PutDisruptionBudget, Name "name" v1::DisruptionBudget => |it| it.name, Dispatcher, of_node: false;
    Reservation(Reservation) "reservation" PutReservation, Name "name" v1::Reservation => |it| it.name, Dispatcher, of_node: false;
    PartitionBlock(PartitionBlock) "partition_block" PutPartitionBlock, Id "block_id" v1::PartitionBlock => |it| it.block_id, Dispatcher, of_node: false;
    UnitHistory(UnitHistory) "unit_history" PutUnitHistory, Id "unit_id" UnitKey => |it| it.unit_id, Dispatcher, of_node: false;
    YarnKeys(YarnKeys) "yarn_keys" PutYarnKeys, Name "name" v1::YarnKeys => |it| it.name, Yarn, of_node: false;
    YarnApplication(YarnApplication) "yarn_application" PutYarnApplication, Name "application" v1::YarnApplication => |it| it.application, Yarn, of_node: false;
    Movement(Movement) "movement" PutMovement, Name "name" v1::Movement => |it| it.name, Rescheduler, of_node: false;
    MoveRate(MoveRate) "move_rate" PutMoveRate, Id "unit_id" UnitKey => |it| it.unit_id, Rescheduler, of_node: false;
    TrustRoots(TrustRoots) "trust_roots" PutTrustRoots, Name "name" v1::TrustRoots => |it| it.name, Identities, of_node: false;
    SealedSigner(SealedSigner) "sealed_signer" PutSealedSigner, Name "name" v1::SealedSigner => |it| it.name, Identities, of_node: false;
    Identity(IdentityRecord) "identity" PutIdentity, Name "identity" v1::IdentityRecord => |it| it.identity, Identities, of_node: false;
    JoinToken(JoinToken) "join_token" PutJoinToken, Name "token_id" v1::JoinToken => |it| it.token_id, Identities, of_node: false;
    Principal(Principal) "principal" PutPrincipal, Name "name" v1::Principal => |it| it.name, Identities, of_node: false;
    PersonToken(PersonToken) "person_token" PutPersonToken, Name "token_id" v1::PersonToken => |it| it.token_id, Identities, of_node: false;
    Change(ChangeRecord) "change" PutChange, Id "change_id" v1::ChangeRecord => |it| it.change_id, Changes, of_node: false;
    Rows(UnitRows) "rows", Id "unit_id" UnitKey => |it| it.unit_id, Operations, of_node: false;
}

impl KindInfo {
    /// Returns the entry of a kind; `None` for [`Kind::Unspecified`].
    pub fn of(kind: Kind) -> Option<&'static Self> {
        KINDS.iter().find(|entry| entry.kind == kind)
    }

    /// Whether its records are written whole, as those of every kind are but running units.
    pub fn is_whole(&self) -> bool {
        self.owner != Owner::Operations
    }
}

/// Kinds of records that are written whole, in the order of [`KINDS`]; running units come last there.
pub const WHOLE: [Kind; N_WHOLE] = {
    let mut whole = [Kind::Unspecified; N_WHOLE];
    let mut idx = 0;
    while idx < N_WHOLE {
        whole[idx] = KINDS[idx].kind;
        idx += 1;
    }
    whole
};

/// Kinds of records that state keeps to itself: no list, watch or other stream of records returns them, to anybody. Backups have them as
/// the store has them, what signs being sealed.
pub const HIDDEN: [Kind; 2] = [Kind::SealedSigner, Kind::JoinToken];

/// Whether state keeps the records of a kind to itself.
pub fn is_hidden(kind: Kind) -> bool {
    HIDDEN.contains(&kind)
}

/// Whether a field of `Op` puts a whole record.
pub fn puts_whole(field: u32) -> bool {
    const FIELDS: u64 = {
        let (mut fields, mut idx) = (0, 0);
        while idx < N_WHOLE {
            fields |= 1 << WHOLE[idx] as u32;
            idx += 1;
        }
        fields
    };
    field < u64::BITS && FIELDS & (1 << field) != 0
}

/// Whether records of a kind are about one node and go with it.
pub fn is_of_node(kind: Kind) -> bool {
    KindInfo::of(kind).is_some_and(|entry| entry.of_node)
}

/// Kinds of records that are about one node and go with it.
pub fn of_node() -> impl Iterator<Item = Kind> {
    KINDS.iter().filter(|entry| entry.of_node).map(|entry| entry.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_kind_once_and_agrees_with_the_messages() {
        for number in 1..64 {
            let Ok(kind) = Kind::try_from(number) else { continue };
            assert_eq!(KINDS.iter().filter(|entry| entry.kind == kind).count(), 1, "{kind:?}");
        }
        for entry in &KINDS {
            let field = crate::FILE_DESCRIPTOR_SET.windows(entry.name.len());
            assert!(field.into_iter().any(|text| text == entry.name.as_bytes()), "{}", entry.name);
            let record = decode(entry.kind, Bytes::new()).unwrap().unwrap();
            assert_eq!(kind_of(&record), entry.kind);
            assert_eq!(decode(entry.kind, encode(&record)).unwrap(), Some(record));
            let key = key_of(entry.kind, Bytes::new()).unwrap().unwrap();
            assert_eq!(matches!(key, Key::Name(_)), entry.key == KeyForm::Name, "{}", entry.name);
        }
        assert_eq!(KindInfo::of(Kind::Unspecified).map(|entry| entry.name), None);
        assert!(KINDS.iter().all(|entry| entry.is_whole() == WHOLE.contains(&entry.kind)));
    }
}
