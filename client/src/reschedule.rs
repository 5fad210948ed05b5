//! Policies, plans and movements of the rescheduler, and files of traffic between units.

use std::{collections::BTreeMap, time::Duration};

use godel_proto::v1;
use tonic::Request;

use crate::{client::Client, exit::Failure, pages::read_pages};

/// Pairs of one call of ReportTraffic.
const N_PAIRS_MAX: usize = 10_000;
/// Deadline of calls that make a plan: one for the largest clusters takes ten seconds.
const PLAN_LIMIT: Duration = Duration::from_secs(60);

/// A request that may take as long as a plan.
fn planning<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(PLAN_LIMIT);
    request
}

/// Every policy, by name.
///
/// # Errors
/// What the server answered.
pub async fn list_policies(client: &Client) -> Result<Vec<v1::ReschedulePolicy>, Failure> {
    let answer = client
        .reschedule(async |mut service| service.list_policies(v1::ListPoliciesRequest {}).await)
        .await?;
    Ok(answer.policies)
}

/// The plan of a policy, which nobody executes.
///
/// # Errors
/// What the server answered.
pub async fn plan(client: &Client, policy: &str) -> Result<v1::ReschedulePlan, Failure> {
    let request = v1::PlanPolicyRequest { policy: policy.to_owned() };
    let answer =
        client.reschedule_once(async |mut service| service.plan_policy(planning(request)).await).await?;
    Ok(answer.plan.unwrap_or_default())
}

/// Runs a policy now. The call is made once: a second one would be a second run.
///
/// # Errors
/// What the server answered.
pub async fn run(client: &Client, policy: &str) -> Result<v1::RunPolicyResponse, Failure> {
    let request = v1::RunPolicyRequest { policy: policy.to_owned() };
    let answer =
        client.reschedule_once(async |mut service| service.run_policy(planning(request)).await).await?;
    Ok(answer)
}

/// Makes room for a waiting unit, or says how that would be done. The call is made once.
///
/// # Errors
/// What the server answered.
pub async fn make_room(
    client: &Client,
    request: v1::MakeRoomForRequest,
) -> Result<v1::MakeRoomForResponse, Failure> {
    let answer =
        client.reschedule_once(async |mut service| service.make_room_for(planning(request)).await).await?;
    Ok(answer)
}

/// What the rescheduler does.
///
/// # Errors
/// What the server answered.
pub async fn status(client: &Client) -> Result<v1::GetRescheduleStatusResponse, Failure> {
    let answer = client
        .reschedule(async |mut service| {
            service.get_reschedule_status(v1::GetRescheduleStatusRequest {}).await
        })
        .await?;
    Ok(answer)
}

/// Movements of a policy, or of all if it is empty: at most `limit`, the newest first, and whether there are more.
///
/// # Errors
/// What the server answered.
pub async fn list_movements(
    client: &Client,
    policy: &str,
    limit: usize,
) -> Result<(Vec<v1::MovementSummary>, bool), Failure> {
    let page_size = u32::try_from(limit.saturating_add(1)).unwrap_or(u32::MAX).clamp(1, 1_000);
    read_pages(limit, async |page_token| {
        let request = v1::ListMovementsRequest { policy: policy.to_owned(), page_size, page_token };
        let page =
            client.reschedule(async |mut service| service.list_movements(request.clone()).await).await?;
        Ok((page.movements, page.next_page_token))
    })
    .await
}

/// One movement with its moves.
///
/// # Errors
/// What the server answered.
pub async fn movement(client: &Client, name: &str) -> Result<v1::Movement, Failure> {
    let answer = client
        .reschedule(async |mut service| {
            service.get_movement(v1::GetMovementRequest { name: name.to_owned() }).await
        })
        .await?;
    Ok(answer.movement.unwrap_or_default())
}

/// Ends a movement; the movement as it is then.
///
/// # Errors
/// What the server answered.
pub async fn abort(client: &Client, name: &str, reason: &str) -> Result<v1::Movement, Failure> {
    let answer = client
        .reschedule(async |mut service| {
            service
                .abort_movement(v1::AbortMovementRequest { name: name.to_owned(), reason: reason.to_owned() })
                .await
        })
        .await?;
    Ok(answer.movement.unwrap_or_default())
}

/// Reports traffic; how many pairs are known then.
///
/// # Errors
/// What the server answered.
pub async fn report_traffic(client: &Client, traffic: &[v1::UnitTraffic]) -> Result<u64, Failure> {
    let mut n_known = 0;
    for part in traffic.chunks(N_PAIRS_MAX) {
        let answer = client
            .reschedule(async |mut service| {
                service.report_traffic(v1::ReportTrafficRequest { traffic: part.to_vec() }).await
            })
            .await?;
        n_known = answer.pairs;
    }
    Ok(n_known)
}

/// Reports when running units saved their work last.
///
/// # Errors
/// What the server answered.
pub async fn report_checkpoint(
    client: &Client,
    request: v1::ReportCheckpointRequest,
) -> Result<v1::ReportCheckpointResponse, Failure> {
    let answer =
        client.reschedule(async |mut service| service.report_checkpoint(request.clone()).await).await?;
    Ok(answer)
}

/// Reads a file of traffic: a pair a line, as `web shop/orders 12.5`. Empty lines and those behind `#` say nothing.
///
/// # Errors
/// Everything that is wrong, by line.
pub fn read_traffic(text: &str) -> Result<Vec<v1::UnitTraffic>, Vec<String>> {
    let (mut traffic, mut wrong) = (Vec::new(), Vec::new());
    let mut first_lines: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (idx, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let pair = match words.as_slice() {
            [] => continue,
            [first, ..] if first.starts_with('#') => continue,
            [from, to, weight] => pair(from, to, weight),
            _ => Err("a line has two units and a weight, as `web shop/orders 12.5`".to_owned()),
        };
        let pair = pair.and_then(|pair| {
            // Traffic has no direction.
            let key = if words[0] <= words[1] { (words[0], words[1]) } else { (words[1], words[0]) };
            match first_lines.insert(key, idx + 1) {
                Some(first) => Err(format!("the pair is on line {first} already")),
                None => Ok(pair),
            }
        });
        match pair {
            Ok(pair) => traffic.push(pair),
            Err(why) => wrong.push(format!("line {}: {why}", idx + 1)),
        }
    }
    if traffic.is_empty() && wrong.is_empty() {
        wrong.push("there is no pair in it".to_owned());
    }
    if wrong.is_empty() { Ok(traffic) } else { Err(wrong) }
}

fn pair(from: &str, to: &str, weight: &str) -> Result<v1::UnitTraffic, String> {
    if from == to {
        return Err(format!("`{from}` is paired with itself"));
    }
    let weight = weight.parse().ok().filter(|weight: &f64| weight.is_finite() && *weight >= 0.0);
    let weight = weight.ok_or("the weight is no number from 0 on")?;
    Ok(v1::UnitTraffic { from: from.to_owned(), to: to.to_owned(), weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_read_and_all_mistakes_are_named() {
        let read = read_traffic("# who talks\n\nweb  shop/db\t12.5\nweb cache 0\n").unwrap();
        let pairs: Vec<_> = read.iter().map(|one| (one.from.as_str(), one.to.as_str(), one.weight)).collect();
        assert_eq!(pairs, [("web", "shop/db", 12.5), ("web", "cache", 0.0)]);
        let number = "the weight is no number from 0 on";
        let words = "a line has two units and a weight, as `web shop/orders 12.5`";
        for (text, expected) in [
            ("", vec!["there is no pair in it".to_owned()]),
            ("# a b 1\n", vec!["there is no pair in it".to_owned()]),
            (
                "a b -1\na a 1\na b\na b 1\nb a 2\na c NaN\na d much\na e 1 2\n",
                vec![
                    format!("line 1: {number}"),
                    "line 2: `a` is paired with itself".to_owned(),
                    format!("line 3: {words}"),
                    "line 5: the pair is on line 4 already".to_owned(),
                    format!("line 6: {number}"),
                    format!("line 7: {number}"),
                    format!("line 8: {words}"),
                ],
            ),
        ] {
            assert_eq!(read_traffic(text).unwrap_err(), expected, "{text}");
        }
    }
}
