//! What stands behind the question mark, and the filters of applications that it makes.

use godel_core_yarn::application::{FinalStatus, PublicAppState};
use godel_core_yarn_leader::{AppFilter, QueueReport};

use super::{
    json::DESELECTS,
    problem::{Problem, number},
};

/// Pairs of one query.
const N_PAIRS_MAX: usize = 1_000;

/// Names and values, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decoded(name, true)?, decoded(value, true)?))
        };
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let n_pairs = pairs.clone().count();
        if n_pairs > N_PAIRS_MAX {
            let why = format!("the query has {n_pairs} parameters; at most {N_PAIRS_MAX} are read");
            return Err(Problem::bad_request(why));
        }
        let pairs: Option<Vec<_>> = pairs.map(pair).collect();
        pairs.map(Self).ok_or_else(|| Problem::bad_request("the query is no UTF-8"))
    }

    /// The first value of a name.
    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Every value of a name.
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Every word of a name that may be given several times, each time with several words.
    pub(super) fn words<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.all(name).flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty())
    }
}

/// Text without its escapes; in a query `+` is a blank. `None`: it is no UTF-8. A `%` that begins no escape stays.
pub(super) fn decoded(text: &str, is_query: bool) -> Option<String> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut n = 0;
    while let Some(byte) = bytes.get(n) {
        n += 1;
        let escape = digit(bytes.get(n)).zip(digit(bytes.get(n + 1)));
        match (byte, escape) {
            (b'%', Some((high, low))) => {
                out.push(u8::try_from(high * 16 + low).ok()?);
                n += 2;
            }
            (b'+', _) if is_query => out.push(b' '),
            _ => out.push(*byte),
        }
    }
    String::from_utf8(out).ok()
}

fn state(word: &str) -> Result<PublicAppState, Problem> {
    let upper = word.to_ascii_uppercase();
    let known = PublicAppState::ALL.into_iter().find(|state| state.name() == upper);
    known.ok_or_else(|| {
        let shown: String = word.chars().take(100).collect();
        let all = PublicAppState::ALL.map(PublicAppState::name).join(", ");
        Problem::bad_request(format!(
            "Invalid application-state {shown} specified. It should be one of [{all}]"
        ))
    })
}

/// States as words, from parameters of these names.
pub(super) fn states(query: &Query, names: &[&str]) -> Result<Vec<PublicAppState>, Problem> {
    let mut states = Vec::new();
    for word in names.iter().flat_map(|name| query.words(name)) {
        let state = state(word)?;
        if !states.contains(&state) {
            states.push(state);
        }
    }
    Ok(states)
}

/// Both ends of a time, if one is given.
fn range(query: &Query, name: &str) -> Result<Option<(i64, i64)>, Problem> {
    let begin = number(query, &format!("{name}Begin"))?;
    let end = number(query, &format!("{name}End"))?;
    for (which, at) in [("Begin", begin), ("End", end)] {
        if at.is_some_and(|at| at < 0) {
            return Err(Problem::bad_request(format!("{name}{which} must be greater than 0")));
        }
    }
    if begin.is_none() && end.is_none() {
        return Ok(None);
    }
    let (begin, end) = (begin.unwrap_or(0), end.unwrap_or(i64::MAX));
    if begin > end {
        return Err(Problem::bad_request(format!("{name}End must be greater than {name}Begin")));
    }
    Ok(Some((begin, end)))
}

/// Which applications are asked for; `None`: those with a final status that none has.
pub(super) fn filter(query: &Query, queues: &[QueueReport]) -> Result<Option<AppFilter>, Problem> {
    let mut filter = AppFilter { states: states(query, &["state", "states"])?, ..AppFilter::default() };
    if let Some(word) = query.first("finalStatus").filter(|word| !word.is_empty()) {
        filter.final_statuses = match word {
            "UNDEFINED" => vec![FinalStatus::Undefined],
            "SUCCEEDED" => vec![FinalStatus::Succeeded],
            "FAILED" => vec![FinalStatus::Failed],
            "KILLED" => vec![FinalStatus::Killed],
            "ENDED" => return Ok(None),
            _ => return Err(super::problem::no_constant("FinalApplicationStatus", word)),
        };
    }
    let given = |name: &str| query.first(name).filter(|value| !value.is_empty()).map(str::to_owned);
    filter.users = given("user").into_iter().collect();
    if let Some(queue) = given("queue") {
        if !queues.iter().any(|known| is_named(known, &queue)) {
            let shown: String = queue.chars().take(200).collect();
            return Err(Problem::bad_request(format!("Unknown queue: {shown}")));
        }
        filter.queues = vec![queue];
    }
    filter.limit = match number(query, "limit")? {
        None => None,
        Some(limit) if limit <= 0 => {
            return Err(Problem::bad_request("limit value must be greater then 0"));
        }
        Some(limit) => Some(usize::try_from(limit).unwrap_or(usize::MAX)),
    };
    filter.started_ms = range(query, "startedTime")?;
    filter.finished_ms = range(query, "finishedTime")?;
    filter.kinds = query.words("applicationTypes").map(str::to_owned).collect();
    filter.tags = query.words("applicationTags").map(str::to_lowercase).collect();
    filter.name = given("name");
    Ok(Some(filter))
}

/// Whether a queue has this path or this last name.
pub(super) fn is_named(queue: &QueueReport, name: &str) -> bool {
    queue.path == name || queue.path.rsplit('.').next() == Some(name)
}

/// Parts that are not shown.
pub(super) fn deselected(query: &Query) -> Result<Vec<&'static str>, Problem> {
    let part = |word: &str| {
        let known = DESELECTS.into_iter().find(|known| known.eq_ignore_ascii_case(word));
        known.ok_or_else(|| {
            let shown: String = word.chars().take(100).collect();
            let all = DESELECTS.join(", ");
            Problem::bad_request(format!(
                "Invalid deSelects string {shown} specified. It should be one of [{all}]"
            ))
        })
    };
    query.words("deSelects").map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::samples::queue;

    fn filtered(text: &str) -> Result<Option<AppFilter>, Problem> {
        filter(&Query::parse(text).unwrap(), &[queue("root", 100.0), queue("root.prod.a", 100.0)])
    }

    #[test]
    fn a_query_is_read_whole_or_refused() {
        let query = |n: usize| (0..n).map(|idx| format!("states={idx}")).collect::<Vec<_>>().join("&");
        assert_eq!(Query::parse(&query(N_PAIRS_MAX)).unwrap().words("states").count(), N_PAIRS_MAX);
        let refused = Query::parse(&query(N_PAIRS_MAX + 1)).unwrap_err();
        assert!(matches!(&refused, Problem::BadRequest(why) if why.contains("1001") && why.contains("1000")));
    }

    #[test]
    fn filters_are_read_as_yarn_reads_them() {
        let read = filtered(
            "states=running,ACCEPTED&state=finished&user=ann&queue=a&limit=7&applicationTypes=spark,%20mapreduce\
             &applicationTags=Night&startedTimeBegin=5&finishedTimeEnd=9&finalStatus=SUCCEEDED&name=word+count",
        );
        let expected = AppFilter {
            states: vec![PublicAppState::Finished, PublicAppState::Running, PublicAppState::Accepted],
            final_statuses: vec![FinalStatus::Succeeded],
            kinds: vec!["spark".into(), "mapreduce".into()],
            tags: vec!["night".into()],
            users: vec!["ann".into()],
            queues: vec!["a".into()],
            started_ms: Some((5, i64::MAX)),
            finished_ms: Some((0, 9)),
            name: Some("word count".into()),
            limit: Some(7),
        };
        assert_eq!(read, Ok(Some(expected)));
        assert_eq!(filtered(""), Ok(Some(AppFilter::default())));
        assert_eq!(
            filtered("state=&limit=&unknown=1&queue=root.prod.a").unwrap().unwrap().queues,
            ["root.prod.a"]
        );
        assert_eq!(filtered("finalStatus=ENDED"), Ok(None));
    }

    #[test]
    fn wrong_filters_are_refused_in_yarns_words() {
        for (query, words) in [
            (
                "states=going",
                "Invalid application-state going specified. It should be one of [NEW, NEW_SAVING",
            ),
            ("limit=0", "limit value must be greater then 0"),
            ("limit=x", "limit: \"x\" is no number"),
            ("startedTimeBegin=-1", "startedTimeBegin must be greater than 0"),
            (
                "finishedTimeBegin=9&finishedTimeEnd=8",
                "finishedTimeEnd must be greater than finishedTimeBegin",
            ),
            ("queue=nowhere", "Unknown queue: nowhere"),
        ] {
            let Err(Problem::BadRequest(why)) = filtered(query) else { panic!("{query}") };
            assert!(why.starts_with(words), "{why}");
        }
        let Err(Problem::IllegalArgument(why)) = filtered("finalStatus=fine") else { panic!() };
        assert!(why.ends_with("FinalApplicationStatus.fine"), "{why}");
        let read = |text| deselected(&Query::parse(text).unwrap());
        assert_eq!(read("deSelects=resourcerequests,timeouts"), Ok(vec!["resourceRequests", "timeouts"]));
        assert!(matches!(read("deSelects=all"), Err(Problem::BadRequest(_))));
    }

    #[test]
    fn escapes_are_read_and_others_stay() {
        assert_eq!(decoded("a%20b%2Bc+d", true).as_deref(), Some("a b+c d"));
        assert_eq!(decoded("a+%", false).as_deref(), Some("a+%"));
        assert_eq!(decoded("100%zz%4", true).as_deref(), Some("100%zz%4"));
        assert_eq!(decoded("%ff", true), None);
        assert_eq!(decoded("%C3%BC", true).as_deref(), Some("ü"));
    }
}
