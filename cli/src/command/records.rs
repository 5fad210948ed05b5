//! Records that are created, shown, changed and deleted by name, of whatever kind.

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, View},
};

use super::{
    describe_each,
    each::{Done, each},
    print_described,
};
use crate::args::records::{ChangedRecords, DeletedRecords, NewRecords, RecordNames};

/// A kind of record.
pub(super) trait NamedRecord {
    /// One of them, and several.
    const NAMES: [&str; 2];
    /// The verb that is about them: `budget`.
    const VERB: &str;
    /// What flags say of one.
    type Settings: clap::Args + Clone;
    /// One as given.
    type Record: Clone;
    /// One as shown.
    type View: View;

    /// Returns one without settings.
    fn fresh(name: String) -> Self::Record;
    /// Changes what the flags name, and nothing else.
    fn settle(record: &mut Self::Record, settings: Self::Settings) -> Result<(), Failure>;
    /// Returns all of them.
    async fn list(client: &Client) -> Result<Vec<Self::View>, Failure>;
    /// Returns one as shown and as stored.
    async fn get(client: &Client, name: String) -> Result<StoredRecord<Self>, Failure>;
    /// Creates one; where it is there as given, that is said.
    async fn create(client: &Client, record: Self::Record) -> Result<CreatedRecord, Failure>;
    /// Changes one if it has a revision; 0: whichever it has.
    async fn update(client: &Client, record: Self::Record, revision: u64) -> Result<Done, Failure>;
    /// Deletes one if it has a revision; 0: whichever it has.
    async fn delete(client: &Client, name: String, revision: u64) -> Result<u64, Failure>;

    /// Returns what people read of one.
    fn text(view: &Self::View) -> String {
        titled(view)
    }
}

/// A record that is stored.
pub(super) struct StoredRecord<K: NamedRecord + ?Sized> {
    pub(super) view: K::View,
    pub(super) record: K::Record,
    pub(super) revision: u64,
}

/// A record that is created, or was before.
pub(super) struct CreatedRecord {
    pub(super) is_duplicate: bool,
    pub(super) revision: u64,
}

impl From<CreatedRecord> for Done {
    fn from(CreatedRecord { is_duplicate, revision }: CreatedRecord) -> Self {
        Self::at(if is_duplicate { "already exists" } else { "created" }, revision)
    }
}

pub(super) async fn create<K: NamedRecord>(
    client: &Client,
    NewRecords { names, settings }: NewRecords<K::Settings>,
    format: Format,
) -> Result<(), Failure> {
    let created = each(format, K::NAMES[0], &names, async |name| {
        let mut record = K::fresh(name);
        K::settle(&mut record, settings.clone())?;
        K::create(client, record).await.map(Done::from)
    });
    created.await.map(drop)
}

pub(super) async fn list<K: NamedRecord>(client: &Client, format: Format) -> Result<(), Failure> {
    output::print_list(format, &K::list(client).await?, K::NAMES[1])
}

pub(super) async fn describe<K: NamedRecord>(
    client: &Client,
    RecordNames { names }: RecordNames,
    format: Format,
) -> Result<(), Failure> {
    let look = async |name: String| Ok::<_, Failure>(K::get(client, name).await?.view);
    print_described(format, K::NAMES[0], describe_each(&names, look).await, K::text)
}

pub(super) async fn set<K: NamedRecord>(
    client: &Client,
    ChangedRecords { records, settings, revision }: ChangedRecords<K::Settings>,
    format: Format,
) -> Result<(), Failure> {
    let set = each(format, K::NAMES[0], &records.names, async |name| {
        let StoredRecord { mut record, revision: known, .. } = K::get(client, name).await?;
        K::settle(&mut record, settings.clone())?;
        // What was read is what is changed.
        K::update(client, record, if revision == 0 { known } else { revision }).await
    });
    set.await.map(drop)
}

pub(super) async fn delete<K: NamedRecord>(
    client: &Client,
    DeletedRecords { records, revision }: DeletedRecords,
    format: Format,
) -> Result<(), Failure> {
    let deleted = each(format, K::NAMES[0], &records.names, async |name| {
        Ok(Done::at("deleted", K::delete(client, name, revision).await?))
    });
    deleted.await.map(drop)
}

/// What a file says: created, changed, or there as given. The word for that, and the revision.
pub(super) async fn apply<K: NamedRecord>(
    client: &Client,
    record: &K::Record,
) -> Result<(&'static str, u64), Failure> {
    match K::create(client, record.clone()).await {
        Ok(CreatedRecord { is_duplicate: true, revision }) => Ok(("unchanged", revision)),
        Ok(CreatedRecord { is_duplicate: false, revision }) => Ok(("created", revision)),
        Err(failure) if failure.code == Code::Conflict => {
            Ok(("updated", K::update(client, record.clone(), 0).await?.revision))
        }
        Err(failure) => Err(failure),
    }
}

/// Something else has the name.
pub(super) fn exists<K: NamedRecord>(failure: Failure) -> Failure {
    match failure.code {
        Code::Conflict => different(failure)
            .hint(format!("`godel {} set` changes it, `godel apply -f` replaces it", K::VERB)),
        _ => failure,
    }
}

/// What has the name is another one.
pub(super) fn different(failure: Failure) -> Failure {
    Failure { message: format!("{} with other settings", failure.message), ..failure }
}

/// Says what helps where there is none.
pub(super) fn hint<K: NamedRecord>(failure: Failure) -> Failure {
    match failure.code {
        Code::NotFound => failure.hint(format!("`godel {} list` shows what there is", K::VERB)),
        _ => failure,
    }
}

/// A line for each column.
pub(super) fn titled<V: View>(view: &V) -> String {
    output::fields(13, view)
}
