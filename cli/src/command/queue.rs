//! `godel queue` and `godel priority-class`.

use std::{collections::HashMap, num::NonZeroU32};

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format},
    unit_file::{nearest, parse_amount},
    views::{PriorityClassView, QueueView, parse_policy},
};
use godel_domain::queue_spec::parse_share;
use godel_proto::v1;

use super::{
    describe_each,
    each::{Done, each},
    print_described,
    records::{self, CreatedRecord, NamedRecord, StoredRecord, different, exists, hint, titled},
};
use crate::args::{
    queue::{PriorityClassVerb, Queue, QueueSettings},
    records::{DeletedRecords, RecordNames},
};

const CLASS: &str = "priority class";

pub(super) async fn run(client: &Client, verb: Queue, format: Format) -> Result<(), Failure> {
    match verb {
        Queue::Create(new) => records::create::<NamedQueues>(client, new, format).await,
        Queue::List => records::list::<NamedQueues>(client, format).await,
        Queue::Describe(names) => records::describe::<NamedQueues>(client, names, format).await,
        Queue::Set(changed) => records::set::<NamedQueues>(client, changed, format).await,
        Queue::Delete(deleted) => records::delete::<NamedQueues>(client, deleted, format).await,
    }
}

/// Queues.
struct NamedQueues;

impl NamedRecord for NamedQueues {
    const NAMES: [&str; 2] = ["queue", "queues"];
    const VERB: &str = "queue";
    type Settings = QueueSettings;
    type Record = v1::Queue;
    type View = QueueView;

    fn fresh(name: String) -> Self::Record {
        let meta = v1::ObjectMeta { name, ..v1::ObjectMeta::default() };
        v1::Queue { meta: Some(meta), ..v1::Queue::default() }
    }

    fn settle(queue: &mut Self::Record, settings: QueueSettings) -> Result<(), Failure> {
        let QueueSettings {
            min,
            max,
            max_running_units,
            max_per_owner,
            am_share,
            weight,
            policy,
            submit_owners,
            any_owner,
            owner_weights,
            owner,
            labels,
        } = settings;
        for (flag, changes, amounts) in [
            ("--min", min, &mut queue.min),
            ("--max", max, &mut queue.max),
            ("--max-per-owner", max_per_owner, &mut queue.max_per_owner),
        ] {
            change(&mut amounts.get_or_insert_default().amounts, &changes, |name, text| {
                parse_amount(name, text).map_err(|error| Failure::usage(format!("{flag} {name}: {error}")))
            })?;
        }
        if let Some(max) = max_running_units {
            queue.max_running_units = (max > 0).then_some(max);
        }
        if let Some(text) = am_share {
            let share = if text == "0" { Ok(None) } else { parse_share(&text).map(Some) };
            queue.am_share_milli = share.map_err(|wrong| Failure::usage(format!("--am-share: {wrong}")))?;
        }
        queue.weight = weight.or(queue.weight);
        if let Some(word) = policy {
            let policy = parse_policy(&word).ok_or_else(|| {
                let known = ["fifo", "priority", "drf", "fair-share"];
                let hint = nearest(&word, &known).map_or_else(
                    || format!("policies are {}", known.join(", ")),
                    |near| format!("did you mean `{near}`?"),
                );
                Failure::usage(format!("--policy: unknown policy `{word}`")).hint(hint)
            })?;
            queue.policy = policy.into();
        }
        if any_owner || !submit_owners.is_empty() {
            queue.submit_owners = submit_owners;
        }
        change(&mut queue.owner_weights, &owner_weights, |owner, text| {
            let wrong =
                |_| Failure::usage(format!("--owner-weight {owner}: `{text}` is not a number of at least 1"));
            text.parse::<NonZeroU32>().map(NonZeroU32::get).map_err(wrong)
        })?;
        let meta = queue.meta.get_or_insert_default();
        meta.owner = owner.unwrap_or(std::mem::take(&mut meta.owner));
        change(&mut meta.labels, &labels, |_, text| Ok(text.to_owned()))
    }

    async fn list(client: &Client) -> Result<Vec<QueueView>, Failure> {
        Ok(client.list_queues().await?.iter().map(QueueView::from).collect())
    }

    async fn get(client: &Client, name: String) -> Result<StoredRecord<Self>, Failure> {
        let request = v1::GetQueueRequest { name };
        let call = client.queues(async |mut queues| queues.get_queue(request.clone()).await);
        let status = call.await.map_err(hint::<Self>)?.queue.unwrap_or_default();
        let view = QueueView::from(&status);
        let record = status.queue.unwrap_or_default();
        let revision = record.meta.as_ref().map_or(0, |meta| meta.revision);
        Ok(StoredRecord { view, record, revision })
    }

    async fn create(client: &Client, queue: Self::Record) -> Result<CreatedRecord, Failure> {
        let request = v1::CreateQueueRequest { queue: Some(queue) };
        let call = client.queues(async |mut queues| queues.create_queue(request.clone()).await);
        let answer = call.await.map_err(|failure| match failure.code {
            Code::NotFound if failure.message.ends_with("for it to be below") => {
                failure.hint("create the queue above it first, or apply a file with both")
            }
            Code::NotFound => hint::<Self>(failure),
            _ => exists::<Self>(failure),
        })?;
        Ok(CreatedRecord { is_duplicate: answer.duplicate, revision: answer.revision })
    }

    async fn update(client: &Client, queue: Self::Record, revision: u64) -> Result<Done, Failure> {
        if revision == 0 {
            // `default` before it has a record.
            return Self::create(client, queue).await.map(Done::from);
        }
        let request = v1::UpdateQueueRequest { queue: Some(queue), expected_revision: revision };
        let call = client.queues(async |mut queues| queues.update_queue(request.clone()).await);
        Ok(Done::at("updated", call.await.map_err(hint::<Self>)?.revision))
    }

    async fn delete(client: &Client, name: String, revision: u64) -> Result<u64, Failure> {
        let request = v1::DeleteQueueRequest { name, expected_revision: revision };
        let call = client.queues(async |mut queues| queues.delete_queue(request.clone()).await);
        Ok(call.await.map_err(|failure| delete_hint(hint::<Self>(failure)))?.revision)
    }

    fn text(view: &QueueView) -> String {
        describe_text(view)
    }
}

pub(super) async fn run_class(
    client: &Client,
    class: PriorityClassVerb,
    format: Format,
) -> Result<(), Failure> {
    match class {
        PriorityClassVerb::Create { names, value, not_preemptible, description } => {
            let created = each(format, CLASS, &names, async |name| {
                let description = description.clone();
                let class = v1::PriorityClass { name, value, preemptible: !not_preemptible, description };
                create_class(client, class).await
            });
            created.await.map(drop)
        }
        PriorityClassVerb::List => {
            let classes = client.list_priority_classes().await?;
            output::print_views::<PriorityClassView, _>(format, &classes, "priority classes")
        }
        PriorityClassVerb::Describe(RecordNames { names }) => {
            let look = async |name: String| {
                Ok::<_, Failure>(PriorityClassView::from(&get_class(client, &name).await?))
            };
            print_described(format, CLASS, describe_each(&names, look).await, titled)
        }
        PriorityClassVerb::Set { names, value, preemptible, description, revision } => {
            let set = each(format, CLASS, &names, async |name| {
                let status = get_class(client, &name).await?;
                let mut class = status.priority_class.unwrap_or_default();
                class.value = value.unwrap_or(class.value);
                class.preemptible = preemptible.unwrap_or(class.preemptible);
                class.description = description.clone().unwrap_or(class.description);
                // What was read is what is changed.
                let expected_revision = if revision == 0 { status.revision } else { revision };
                let request =
                    v1::UpdatePriorityClassRequest { priority_class: Some(class), expected_revision };
                let call =
                    client.queues(async |mut queues| queues.update_priority_class(request.clone()).await);
                let answer = call.await.map_err(class_hint)?;
                Ok(Done::at("updated", answer.revision))
            });
            set.await.map(drop)
        }
        PriorityClassVerb::Delete(DeletedRecords { records, revision }) => {
            let deleted = each(format, CLASS, &records.names, async |name| {
                let request = v1::DeletePriorityClassRequest { name, expected_revision: revision };
                let call =
                    client.queues(async |mut queues| queues.delete_priority_class(request.clone()).await);
                let answer = call.await.map_err(|failure| delete_hint(class_hint(failure)))?;
                Ok(Done::at("deleted", answer.revision))
            });
            deleted.await.map(drop)
        }
    }
}

async fn create_class(client: &Client, class: v1::PriorityClass) -> Result<Done, Failure> {
    let answer = client
        .queues(async |mut queues| {
            queues
                .create_priority_class(v1::CreatePriorityClassRequest { priority_class: Some(class.clone()) })
                .await
        })
        .await
        .map_err(|failure| match failure.code {
            Code::Conflict => {
                different(failure).hint("`godel priority-class set` changes it, unless it is built in")
            }
            _ => failure,
        })?;
    Ok(CreatedRecord { is_duplicate: answer.duplicate, revision: answer.revision }.into())
}

async fn get_class(client: &Client, name: &str) -> Result<v1::PriorityClassStatus, Failure> {
    let answer = client
        .queues(async |mut queues| {
            queues.get_priority_class(v1::GetPriorityClassRequest { name: name.to_owned() }).await
        })
        .await
        .map_err(class_hint)?;
    Ok(answer.priority_class.unwrap_or_default())
}

fn describe_text(view: &QueueView) -> String {
    let mut text = titled(view);
    let show = |amounts: &std::collections::BTreeMap<String, i64>, name: &str| {
        amounts
            .get(name)
            .map_or_else(String::new, |amount| godel_client::unit_file::show_amount(name, *amount))
    };
    let rows: Vec<Vec<String>> = view
        .resources()
        .into_iter()
        .map(|name| {
            let amounts = [&view.used, &view.used_with_children, &view.guaranteed, &view.borrowed];
            let mut row = vec![name.to_owned()];
            row.extend(amounts.into_iter().chain([&view.max_in_force]).map(|of| show(of, name)));
            row
        })
        .collect();
    if !rows.is_empty() {
        let titles = ["RESOURCE", "OWN-USE", "USED", "GUARANTEED", "BORROWED", "MAX"];
        text.push_str(&format!("\n{}", output::columns(&titles, &rows)));
    }
    text
}

fn class_hint(failure: Failure) -> Failure {
    match failure.code {
        Code::NotFound => failure.hint("`godel priority-class list` shows what there is"),
        Code::Failed if failure.message.ends_with("is built in") => {
            failure.hint("built-in classes stay as they are: `godel priority-class create` makes another one")
        }
        _ => failure,
    }
}

fn delete_hint(failure: Failure) -> Failure {
    match failure.code {
        Code::Failed if failure.hint.is_none() => failure.hint("delete or cancel these first"),
        _ => failure,
    }
}

/// `key=value` sets, `key-` removes.
fn change<V>(
    values: &mut (impl Extend<(String, V)> + Removes),
    changes: &[String],
    read: impl Fn(&str, &str) -> Result<V, Failure>,
) -> Result<(), Failure> {
    for change in changes {
        match (change.split_once('='), change.strip_suffix('-')) {
            (Some((key, text)), _) if !key.is_empty() => {
                let value = read(key, text)?;
                values.extend([(key.to_owned(), value)]);
            }
            (None, Some(key)) if !key.is_empty() => values.forget(key),
            _ => return Err(Failure::usage(format!("`{change}` is neither key=value nor key-"))),
        }
    }
    Ok(())
}

/// The maps of messages, of either kind.
trait Removes {
    fn forget(&mut self, key: &str);
}

impl<V> Removes for HashMap<String, V> {
    fn forget(&mut self, key: &str) {
        self.remove(key);
    }
}

impl<V> Removes for std::collections::BTreeMap<String, V> {
    fn forget(&mut self, key: &str) {
        self.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn flags_change_what_they_name_and_nothing_else() {
        let mut queue = v1::Queue {
            min: Some(v1::Resources { amounts: [("cpu".to_owned(), 5), ("gpu".to_owned(), 9)].into() }),
            weight: Some(4),
            submit_owners: words(&["alice"]),
            max_running_units: Some(7),
            owner_weights: [("bob".to_owned(), 2), ("eve".to_owned(), 5)].into(),
            ..v1::Queue::default()
        };
        let settings = QueueSettings {
            min: words(&["cpu=2", "gpu-"]),
            max: words(&["gpu=0", "memory=1Gi"]),
            max_per_owner: words(&["cpu=1", "memory=2Gi"]),
            am_share: Some("0.1".to_owned()),
            policy: Some("drf".to_owned()),
            labels: words(&["team=a"]),
            owner_weights: words(&["ann=3", "bob-"]),
            ..QueueSettings::default()
        };
        NamedQueues::settle(&mut queue, settings).unwrap();
        let min = queue.min.as_ref().unwrap();
        assert_eq!((min.amounts.len(), min.amounts["cpu"]), (1, 2_000));
        let max = queue.max.as_ref().unwrap();
        assert_eq!((max.amounts["gpu"], max.amounts["memory"]), (0, 1 << 30));
        assert_eq!((queue.weight, queue.max_running_units), (Some(4), Some(7)));
        assert_eq!((queue.submit_owners.len(), queue.policy()), (1, v1::QueuePolicy::Drf));
        assert_eq!(queue.owner_weights, [("ann".to_owned(), 3), ("eve".to_owned(), 5)].into());
        assert_eq!(queue.meta.as_ref().unwrap().labels["team"], "a");
        let per_owner = queue.max_per_owner.clone().unwrap();
        assert_eq!((per_owner.amounts["cpu"], queue.am_share_milli), (1_000, Some(100)));
        let none =
            QueueSettings { any_owner: true, am_share: Some("0".to_owned()), ..QueueSettings::default() };
        NamedQueues::settle(&mut queue, none).unwrap();
        assert_eq!((queue.submit_owners.is_empty(), queue.am_share_milli), (true, None));
    }

    #[test]
    fn wrong_flags_say_which() {
        let settle =
            |settings| NamedQueues::settle(&mut v1::Queue::default(), settings).unwrap_err().to_string();
        let wrong = settle(QueueSettings { max: words(&["cpu=many"]), ..QueueSettings::default() });
        assert!(wrong.starts_with("--max cpu: `many` is no CPU quantity"), "{wrong}");
        let wrong = settle(QueueSettings { min: words(&["cpu"]), ..QueueSettings::default() });
        assert_eq!(wrong, "`cpu` is neither key=value nor key-");
        let wrong = settle(QueueSettings { owner_weights: words(&["ann=0"]), ..QueueSettings::default() });
        assert_eq!(wrong, "--owner-weight ann: `0` is not a number of at least 1");
        let wrong = settle(QueueSettings { am_share: Some("2".to_owned()), ..QueueSettings::default() });
        assert!(wrong.starts_with("--am-share: `2` is no share"), "{wrong}");
        let wrong = settle(QueueSettings { policy: Some("fair".to_owned()), ..QueueSettings::default() });
        assert!(wrong.contains("did you mean `fair-share`?"), "{wrong}");
    }
}
