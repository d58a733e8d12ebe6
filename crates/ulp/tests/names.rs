//! The words that the library above keeps for names, as images read them.

mod common;

use common::{apart, compile, over, words};
use upcall_ulp::{ASK_OWN, Image, NameWords, StopReason, Ulp, UlpRequest, Worker};

#[test]
fn images_read_the_words_of_names_as_they_are() {
    let Some(folder) = apart("images_read_the_words_of_names_as_they_are") else { return };
    let image = Image::open(&compile(folder.path(), "names")).unwrap();
    let mut worker = Worker::begin().unwrap();
    const LAST: u32 = (1 << 26) - 1;
    {
        let names = NameWords::new(LAST + 1).unwrap();
        names.set(0, 7);
        // The worker keeps the table.
        worker.show(&names);
        names.set(LAST, u32::MAX);
    }
    let mut ulp = Ulp::load(&image, &words(&["names"]), &[]).unwrap();
    for (word, next) in [(7, LAST), (u32::MAX, 1), (0, 0)] {
        let StopReason::Asks(UlpRequest { what, args }) = worker.resume(&mut ulp) else {
            panic!("it has ended")
        };
        assert_eq!((what, args[0]), (ASK_OWN, u64::from(word)));
        ulp.answer(next.into());
    }
    assert_eq!(worker.resume(&mut ulp), StopReason::Ended { status: 0 });
    over(folder)
}
