//! What the services of records have in common: changes, single records by name, and pages of lists.

use godel_base::ids::Revision;
use godel_core_dispatcher::{
    Dispatcher,
    leader::Edited,
    record_changes::{Edit, EditOutcome},
};
use godel_domain::{names, record_change::RecordChange};
use godel_kit::{security::PersonCall, status};
use godel_wire::BadField;
use tonic::{Code, Status};

use crate::{engine::Editor, leader_client::Front, pages::RecordPage, requests::LeaderRequest};

/// Records on a page unless asked otherwise, and at most.
const PAGE_DEFAULT: usize = 500;
const PAGE_MAX: usize = 1_000;

impl Front {
    /// Changes records together or not at all, for a call; `unread` is what of them cannot be read.
    pub(super) async fn edit(
        &self,
        call: &PersonCall,
        edit: Edit,
        unread: Vec<BadField>,
        is_apply: bool,
    ) -> Result<Edited, Status> {
        let objects = objects(&edit);
        let cause = call.cause("", None);
        self.ask(|reply| LeaderRequest::Edit(edit, Editor { cause, objects, unread, is_apply, reply }))
            .await?
    }

    /// Shows a record by its name.
    pub(super) async fn named<T: Send + 'static>(
        &self,
        what: &str,
        name: String,
        show: fn(&Dispatcher, &str) -> Option<T>,
    ) -> Result<T, Status> {
        let name = required(name)?;
        let asked = name.clone();
        self.read(move |core| show(core, &asked)).await?.ok_or_else(|| unknown(what, &name))
    }

    /// Shows a page of a list, and where it goes on.
    pub(super) async fn page<T: Send + 'static>(
        &self,
        page_size: u32,
        page_token: &str,
        list: fn(&Dispatcher, &str, usize) -> RecordPage<T>,
    ) -> Result<(Vec<T>, RecordPageToken), Status> {
        let (n_max, token) = page_of(page_size, page_token)?;
        let after = token.after.clone();
        let page = self.read(move |core| list(core, &after, n_max)).await?;
        Ok((page.items, token.next(page.next, page.total, page.revision)))
    }
}

/// What the change log calls each record of a change, by position.
fn objects(edit: &Edit) -> Vec<String> {
    fn named<T>(kind: &str, changes: &[RecordChange<T>], name: impl Fn(&T) -> &String) -> Vec<String> {
        let name = |change: &RecordChange<T>| match change {
            RecordChange::Create(record) | RecordChange::Update(record) | RecordChange::Put(record) => {
                format!("{kind}/{}", name(record))
            }
            RecordChange::Delete(name) => format!("{kind}/{name}"),
        };
        changes.iter().map(name).collect()
    }
    let Edit { queues, classes, budgets, reservations, expected_revision: _ } = edit;
    let all = [
        named("queue", queues, |queue| &queue.name),
        named("priority-class", classes, |class| &class.name),
        named("budget", budgets, |budget| &budget.name),
        named("reservation", reservations, |reservation| &reservation.name),
    ];
    all.concat()
}

pub(super) fn required(name: String) -> Result<String, Status> {
    if name.is_empty() { Err(status::invalid_argument([BadField::new("name", "empty")])) } else { Ok(name) }
}

fn unknown(what: &str, name: &str) -> Status {
    let message = format!("there is no {what} `{name}`");
    status::with_info(Code::NotFound, status::reason::UNKNOWN_NAME, message, [("name", name)])
}

/// Revision of the only record, and whether it was there as given.
pub(super) fn of_one(edited: &Edited) -> (u64, bool) {
    let records = edited.queues.iter().chain(&edited.classes).chain(&edited.budgets);
    match records.chain(&edited.reservations).next() {
        Some(EditOutcome::Unchanged(revision)) => (revision.0, true),
        Some(EditOutcome::Created | EditOutcome::Updated | EditOutcome::Deleted) | None => {
            (edited.revision.0, false)
        }
    }
}

/// How much a page may hold, unless asked otherwise and at most; what is wrong is noted.
pub(super) fn page_size(asked: u32, default: usize, most: usize, wrong: &mut Vec<BadField>) -> usize {
    let n_max = match usize::try_from(asked).unwrap_or(usize::MAX) {
        0 => default,
        n_max => n_max,
    };
    if n_max > most {
        wrong.push(BadField::new("page_size", format!("{n_max} is not in 1..={most}")));
    }
    n_max
}

/// A token that no page before gave out.
pub(super) fn bad_token() -> BadField {
    BadField::new("page_token", "not a token of a previous page")
}

/// What a page may hold, and where it begins.
fn page_of(asked: u32, page_token: &str) -> Result<(usize, RecordPageToken), Status> {
    let mut wrong = Vec::new();
    let n_max = page_size(asked, PAGE_DEFAULT, PAGE_MAX, &mut wrong);
    let token = RecordPageToken::parse(page_token);
    if token.is_none() {
        wrong.push(bad_token());
    }
    match token {
        Some(token) if wrong.is_empty() => Ok((n_max, token)),
        Some(_) | None => Err(status::invalid_argument(wrong)),
    }
}

/// Where a list goes on: revision and total of the first page, and the last name of the page before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RecordPageToken {
    pub(super) revision: u64,
    pub(super) total: u32,
    after: String,
}

impl RecordPageToken {
    /// Of the first page when empty; `None` if it is no token.
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let mut parts = text.splitn(3, ':');
        let (revision, total) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let after = parts.next()?;
        names::queue(after).ok()?;
        (revision > 0).then(|| Self { revision, total, after: after.to_owned() })
    }

    /// After this page; empty `after` on the last one.
    fn next(self, after: String, total: usize, revision: Revision) -> Self {
        if self.revision > 0 {
            return Self { after, ..self };
        }
        Self { revision: revision.0, total: u32::try_from(total).unwrap_or(u32::MAX), after }
    }

    pub(super) fn text(&self) -> String {
        let Self { revision, total, after } = self;
        if after.is_empty() { String::new() } else { format!("{revision}:{total}:{after}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_tokens_come_back_as_they_were() {
        let first = RecordPageToken::parse("").unwrap();
        let next = first.next("prod.search".into(), 3, Revision(7));
        assert_eq!(next.text(), "7:3:prod.search");
        assert_eq!(
            RecordPageToken::parse(&next.text()),
            Some(RecordPageToken { revision: 7, total: 3, after: "prod.search".into() })
        );
        let last = next.next(String::new(), 9, Revision(9));
        assert_eq!((last.text().as_str(), last.total, last.revision), ("", 3, 7));
        for bad in ["7", "7:3", "0:3:prod", "x:3:prod", "7:3:Prod", "7:3:prod..a", "7:3:a:b"] {
            assert_eq!(RecordPageToken::parse(bad), None, "{bad}");
        }
    }
}
