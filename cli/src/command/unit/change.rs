//! Changes of units: cancel, suspend, resume, scale, move, stop, retry, delete. Whatever is named is tried.

use std::ops::RangeInclusive;

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{Format, shown},
};
use godel_proto::v1;
use godel_rules::admission::{retry::RETRIED_MAX, stop::ORDINALS_MAX};

use crate::{
    args::{Delete, Move, NamedUnits, Retry, ScaleArgs, Stop, split},
    command::{
        each::{Done, UNCHANGED, each},
        wait,
    },
};

/// What units are told that takes nothing but their names.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Cancel,
    Suspend,
    Resume,
}

/// Does the same to each of some units, by namespace and name.
async fn each_unit(
    format: Format,
    namespace: &str,
    names: &[String],
    mut act: impl AsyncFnMut(String, String) -> Result<Done, Failure>,
) -> Result<(), Failure> {
    let done = each(format, "unit", names, async |name| {
        let (namespace, name) = split(namespace, &name);
        act(namespace.to_owned(), name.to_owned()).await
    });
    done.await.map(drop)
}

pub(super) async fn change(
    client: &Client,
    change: Change,
    NamedUnits { names, namespace, revision }: &NamedUnits,
    format: Format,
) -> Result<(), Failure> {
    each_unit(format, namespace, names, async |namespace, name| {
        one(client, change, namespace, name, *revision).await
    })
    .await
}

async fn one(
    client: &Client,
    change: Change,
    namespace: String,
    name: String,
    expected_revision: u64,
) -> Result<Done, Failure> {
    match change {
        Change::Cancel => {
            let request = v1::CancelUnitRequest { namespace, name, expected_revision };
            let call = client.units(async |mut units| units.cancel_unit(request.clone()).await);
            Ok(Done::at("cancelled", call.await?.revision))
        }
        Change::Suspend => {
            let request = v1::SuspendUnitRequest { namespace, name, expected_revision };
            let call = client.units(async |mut units| units.suspend_unit(request.clone()).await);
            Ok(Done::at("suspended", call.await?.revision))
        }
        Change::Resume => {
            let request = v1::ResumeUnitRequest { namespace, name, expected_revision };
            let call = client.units(async |mut units| units.resume_unit(request.clone()).await);
            Ok(Done::at("resumed", call.await?.revision))
        }
    }
}

pub(super) async fn scale(client: &Client, scale: &ScaleArgs, format: Format) -> Result<(), Failure> {
    let ScaleArgs { units: NamedUnits { names, namespace, revision }, replicas, group } = scale;
    each_unit(format, namespace, names, async |namespace, name| {
        let (task_group, replicas, expected_revision) = (group.clone(), *replicas, *revision);
        let request = v1::ScaleUnitRequest { namespace, name, task_group, replicas, expected_revision };
        let call = client.units(async |mut units| units.scale_unit(request.clone()).await);
        Ok(Done::at("scaled", call.await?.revision))
    })
    .await
}

pub(super) async fn move_units(client: &Client, wanted: &Move, format: Format) -> Result<(), Failure> {
    let Move { units: NamedUnits { names, namespace, revision }, queue } = wanted;
    each_unit(format, namespace, names, async |namespace, name| {
        move_one(client, &namespace, &name, queue, *revision).await
    })
    .await
}

/// The unit as it is, but for its queue.
async fn move_one(
    client: &Client,
    namespace: &str,
    name: &str,
    queue: &str,
    revision: u64,
) -> Result<Done, Failure> {
    let mut spec = client.get_unit(namespace, name).await?.unit.unwrap_or_default().spec.unwrap_or_default();
    let meta = spec.meta.clone().unwrap_or_default();
    if meta.name != name && meta.uid != name {
        let said =
            format!("no unit `{}`: give the full name; did you mean `{}`?", shown(name), shown(&meta.name));
        return Err(Failure::new(Code::NotFound, said));
    }
    if revision > 0 && revision != meta.revision {
        let said = format!("the unit is at revision {}, not {revision}", meta.revision);
        return Err(Failure::new(Code::Conflict, said));
    }
    if spec.queue == queue {
        return Ok(Done { said: Some("unchanged"), ..Done::at(UNCHANGED, 0) });
    }
    queue.clone_into(&mut spec.queue);
    let request = v1::UpdateUnitRequest { unit: Some(spec), groups: None, expected_revision: meta.revision };
    let call = client.units(async |mut units| units.update_unit(request.clone()).await);
    let answer = call.await.map_err(|failure| match failure.code {
        Code::Conflict => failure.hint("somebody else has changed the unit meanwhile: move it again"),
        _ => failure,
    })?;
    Ok(Done::at("moved", answer.revision))
}

pub(super) async fn stop(client: &Client, stop: &Stop, format: Format) -> Result<(), Failure> {
    let Stop { words, namespace, revision } = stop;
    let (names, ordinals) = names_and_ordinals(words)?;
    // One more than is allowed is refused, and the rest need not be sent.
    let ordinals: Vec<u32> = ordinals.into_iter().flatten().take(ORDINALS_MAX + 1).collect();
    each_unit(format, namespace, &names, async |namespace, name| {
        let (ordinals, expected_revision) = (ordinals.clone(), *revision);
        let request = v1::StopRunningUnitsRequest { namespace, name, ordinals, expected_revision };
        let call = client.units(async |mut units| units.stop_running_units(request.clone()).await);
        let revision = call.await?.revision;
        Ok(Done { said: Some("has these replicas stopped"), ..Done::at("stopped", revision) })
    })
    .await
}

pub(super) async fn retry(client: &Client, retry: &Retry, format: Format) -> Result<(), Failure> {
    let Retry { units: NamedUnits { names, namespace, revision }, all, replicas } = retry;
    let ranges =
        replicas.iter().map(|word| ordinals(word)).collect::<Result<Vec<_>, _>>().map_err(Failure::usage)?;
    let ordinals: Vec<u32> = ranges.into_iter().flatten().take(RETRIED_MAX + 1).collect();
    each_unit(format, namespace, names, async |namespace, name| {
        let request = v1::RetryUnitRequest {
            namespace,
            name,
            all_replicas: *all,
            expected_revision: *revision,
            ordinals: ordinals.clone(),
            ..v1::RetryUnitRequest::default()
        };
        let call = client.units(async |mut units| units.retry_unit(request.clone()).await);
        let answer = call.await.map_err(|failure| match failure.code {
            Code::Failed if failure.message.contains("has succeeded") => {
                failure.hint("`--all` runs all of them")
            }
            _ => failure,
        });
        Ok(Done::at("retried", answer?.revision))
    })
    .await
}

/// Names, the first word in any case, up to the first other word that is an ordinal or a range of them; then ordinals.
fn names_and_ordinals(words: &[String]) -> Result<(Vec<String>, Vec<RangeInclusive<u32>>), Failure> {
    let is_ordinal = |word: &String| word.starts_with(|c: char| c.is_ascii_digit()) && ordinals(word).is_ok();
    let n_names = words.iter().skip(1).position(is_ordinal).map_or(words.len(), |at| at + 1);
    let (names, rest) = words.split_at(n_names);
    if rest.is_empty() {
        return Err(Failure::usage("give an ordinal, as 3 or 3-5"));
    }
    let rest = rest.iter().map(|word| ordinals(word).map_err(Failure::usage)).collect::<Result<_, _>>()?;
    Ok((names.to_vec(), rest))
}

/// `3`, or `3-5`.
fn ordinals(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("`{text}` is not an ordinal"));
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("{first} is above {last}"));
    }
    Ok(first..=last)
}

/// Deletes records of units that have ended; with `--wait` of those that end in time, with `--cancel` of those that do
/// once they are cancelled.
pub(super) async fn delete(client: &Client, delete: &Delete, format: Format) -> Result<(), Failure> {
    let Delete { units: NamedUnits { names, namespace, revision }, cancel, wait, timeout } = delete;
    each_unit(format, namespace, names, async |namespace, name| {
        match delete_one(client, &namespace, &name, *revision).await {
            Err(failure) if failure.code == Code::Failed && (*cancel || *wait) => {}
            Err(failure) if failure.code == Code::Failed => {
                return Err(
                    failure.hint("`godel unit delete --cancel` cancels it first, `--wait` waits for its end")
                );
            }
            Err(failure) => return Err(failure),
            Ok(revision) => return Ok(Done::at("deleted", revision)),
        }
        if *cancel {
            match one(client, Change::Cancel, namespace.clone(), name.clone(), *revision).await {
                // It has ended by itself meanwhile.
                Err(failure) if failure.code != Code::Failed => return Err(failure),
                Err(_) | Ok(_) => {}
            }
        }
        // However it ends.
        wait::until(client, &namespace, &name, &wait::WaitCondition::Over, *timeout).await?;
        Ok(Done::at("deleted", delete_one(client, &namespace, &name, 0).await?))
    })
    .await
}

async fn delete_one(
    client: &Client,
    namespace: &str,
    name: &str,
    expected_revision: u64,
) -> Result<u64, Failure> {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let request = v1::DeleteUnitRequest { namespace, name, expected_revision };
    let call = client.units(async |mut units| units.delete_unit(request.clone()).await);
    Ok(call.await?.revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_before_ordinals() {
        let split = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            names_and_ordinals(&words)
                .map(|(names, ordinals)| (names.join(" "), ordinals))
                .map_err(|e| e.message)
        };
        assert_eq!(split(&["web", "3", "5-6"]), Ok(("web".to_owned(), vec![3..=3, 5..=6])));
        assert_eq!(split(&["web", "db", "0"]), Ok(("web db".to_owned(), vec![0..=0])));
        assert_eq!(split(&["7", "0"]), Ok(("7".to_owned(), vec![0..=0])), "a unit may be called 7");
        assert_eq!(split(&["web", "db-2", "0"]), Ok(("web db-2".to_owned(), vec![0..=0])));
        assert!(split(&["web"]).is_err() && split(&["web", "db"]).is_err());
        assert_eq!(split(&["web", "1", "x"]), Err("`x` is not an ordinal".to_owned()));
        assert_eq!(split(&["web", "1", "5-3"]), Err("5 is above 3".to_owned()));
    }
}
