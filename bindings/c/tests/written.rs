//! An interface that is written in Rust, called from C: the WIT that is emitted for this very file
//! makes the client's stubs.
#![forbid(unsafe_code)]

mod gcc;

use std::sync::Arc;

#[upcall::package("test:accounts@1.0.0")]
mod accounts {
    use std::sync::Arc;

    /// Accounts.
    #[limits(string = "100")]
    pub trait Accounts {
        /// Opens one.
        fn open(&self, owner: &str) -> Result<Arc<dyn Account>, Failure>;
        fn total(&self, accounts: Vec<upcall::Lent<dyn Account>>) -> i64;
    }

    #[resource]
    pub trait Account {
        fn book(&self, entry: Entry) -> Balance;
    }

    #[derive(Clone, Debug)]
    pub struct Entry {
        pub cents: i64,
        pub r#for: Option<String>,
    }

    #[derive(Clone, Debug)]
    pub enum Balance {
        Even,
        Owes(i64),
        Has(i64),
    }

    #[derive(Clone, Debug)]
    pub enum Failure {
        NoOwner,
    }
}

use accounts::{Account, Accounts, Balance, Entry, Failure};

struct Bank;
struct Own(std::sync::atomic::AtomicI64);

impl Account for Own {
    fn book(&self, entry: Entry) -> Balance {
        let tip = i64::from(entry.r#for.as_deref() == Some("tip"));
        match self.0.fetch_add(entry.cents + tip, std::sync::atomic::Ordering::SeqCst)
            + entry.cents
            + tip
        {
            0 => Balance::Even,
            cents if cents < 0 => Balance::Owes(-cents),
            cents => Balance::Has(cents),
        }
    }
}

impl Accounts for Bank {
    fn open(&self, owner: &str) -> Result<Arc<dyn Account>, Failure> {
        if owner.is_empty() { Err(Failure::NoOwner) } else { Ok(Arc::new(Own(0.into()))) }
    }
    fn total(&self, accounts: Vec<upcall::Lent<dyn Account>>) -> i64 {
        let of = |account: &upcall::Lent<dyn Account>| match account
            .book(Entry { cents: 0, r#for: None })
        {
            Balance::Even => 0,
            Balance::Owes(cents) => -cents,
            Balance::Has(cents) => cents,
        };
        accounts.iter().map(of).sum()
    }
}

const CLIENT: &str = r#"
#include "accounts.h"
#include <stdio.h>
#define CHECK(right)                                                                 \
    do {                                                                             \
        if (!(right)) {                                                              \
            fprintf(stderr, "%d: %s (%s)\n", __LINE__, #right, error.text);          \
            return 1;                                                                \
        }                                                                            \
    } while (0)

int main(int count, char **arguments) {
    upcall_error error;
    accounts_client_t *bank = accounts_bind(arguments[count - 1], &error);
    accounts_result_account_failure_t one, two;
    CHECK(bank);
    CHECK(accounts_open(bank, upcall_text(""), &one, &error) == UPCALL_OK && one.is_err
          && one.as.err == ACCOUNTS_FAILURE_NO_OWNER);
    CHECK(accounts_open(bank, upcall_text("Ada"), &one, &error) == UPCALL_OK && !one.is_err);
    CHECK(accounts_open(bank, upcall_text("Bob"), &two, &error) == UPCALL_OK && !two.is_err);
    accounts_entry_t entry = {7, {true, upcall_text("tip")}};
    accounts_balance_t balance;
    CHECK(accounts_account_book(one.as.ok, &entry, &balance, &error) == UPCALL_OK
          && balance.tag == ACCOUNTS_BALANCE_HAS && balance.as.has == 8);
    entry.cents = -10, entry.for_.is_some = false;
    CHECK(accounts_account_book(two.as.ok, &entry, &balance, &error) == UPCALL_OK
          && balance.tag == ACCOUNTS_BALANCE_OWES && balance.as.owes == 10);
    const accounts_account_t *both[] = {one.as.ok, two.as.ok};
    accounts_list_lent_account_t lent = {both, 2};
    int64_t total;
    CHECK(accounts_total(bank, lent, &total, &error) == UPCALL_OK && total == -2);
    char longer[102] = {0};
    memset(longer, 'x', 101);
    CHECK(accounts_open(bank, upcall_text(longer), &one, &error) == UPCALL_TOO_LONG);
    accounts_account_drop((accounts_account_t *)(uintptr_t)both[0]);
    accounts_account_drop((accounts_account_t *)(uintptr_t)both[1]);
    accounts_unbind(bank);
    return 0;
}
"#;

#[test]
fn c_calls_what_is_written_in_rust() {
    if gcc::left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    gcc::install(folder.path());
    let emitted = upcall_idl::written::emit(gcc::here("tests/written.rs")).unwrap().swap_remove(0);
    assert_eq!(
        (emitted.interface.as_str(), emitted.wit.as_str(), emitted.limits.as_str()),
        ("accounts", accounts::WIT, accounts::LIMITS)
    );
    let wit = folder.path().join("accounts.wit");
    std::fs::write(&wit, emitted.wit).unwrap();
    std::fs::write(wit.with_extension("toml"), emitted.limits).unwrap();
    let code = upcall_idl::generate_c(&wit, "accounts").unwrap();
    let sources = ["accounts.c", "client.c"].map(|name| folder.path().join(name));
    std::fs::write(folder.path().join("accounts.h"), code.header).unwrap();
    std::fs::write(&sources[0], code.source).unwrap();
    std::fs::write(&sources[1], CLIENT).unwrap();
    gcc::compile(&["-g", "-O1"], &sources, folder.path(), "client");

    let name = format!("written-c-{}", std::process::id());
    let running = upcall::Server::new().export(&name, accounts::export(Bank)).start().unwrap();
    let run = gcc::command(&folder.path().join("client"), true).arg(&name).output().unwrap();
    assert!(run.status.success(), "{}: {}", run.status, String::from_utf8_lossy(&run.stderr));
    running.stop();
}
