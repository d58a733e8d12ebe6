use super::*;

#[test]
fn a_message_keeps_its_parts() {
    let slot = Slot::default();
    let mut image = SlotMessage::new(7, 8, 9);
    image.place(ValueLocation::AStack, 10, 200);
    image.values[5] = 11;
    slot.write(&image, 3);
    let mut read = SlotMessage::new(0, 0, 0);
    assert!(!slot.read(2, &mut read) && !slot.holds(4) && slot.holds(3));
    assert!(slot.read(3, &mut read));
    assert_eq!(
        (read.call(), read.tag(), read.astack(), read.segment(), read.len()),
        (7, 8, 9, 10, 200)
    );
    assert_eq!(read.values_in(), Some(ValueLocation::AStack));
    assert_eq!(read.values, image.values);
}

#[test]
fn values_of_all_lengths_arrive_over_those_of_a_longer_message() {
    let slot = Slot::default();
    let mut image = SlotMessage::new(1, 2, 3);
    for (lap, length) in (0..=INLINE as u32).rev().enumerate() {
        image.place(ValueLocation::Inline, 0, length);
        image.values = std::array::from_fn(|at| (lap * 100 + at) as u64);
        slot.write(&image, lap as u16);
        let mut read = SlotMessage::new(0, 0, 0);
        assert!(slot.read(lap as u16, &mut read));
        let words = length.div_ceil(8) as usize;
        assert_eq!((read.len(), &read.values[..words]), (length as usize, &image.values[..words]));
    }
    // With a deadline, the last word is the deadline.
    image.place(ValueLocation::Inline, 0, 1);
    image.set_deadline(77);
    slot.write(&image, 100);
    let mut read = SlotMessage::new(0, 0, 0);
    assert!(slot.read(100, &mut read));
    assert_eq!((read.deadline(), read.values), (Some(77), image.values));
}

#[test]
fn a_kept_message_comes_back() {
    let (kept, mut image) = (StoredMessage::default(), SlotMessage::new(7, 8, 9));
    let mut read = SlotMessage::new(1, 2, 3);
    kept.write(&image);
    kept.read(&mut read);
    assert_eq!((read.call(), read.tag(), read.astack(), read.len()), (7, 8, 9, 0));
    image.place(ValueLocation::Inline, 0, 48);
    image.values = [1, 2, 3, 4, 5, 6];
    kept.write(&image);
    kept.read(&mut read);
    assert_eq!(
        (read.values_in(), read.len(), read.values),
        (Some(ValueLocation::Inline), 48, image.values)
    );
}

#[test]
fn a_deadline_travels_beside_what_else_is_said() {
    let mut image = SlotMessage::new(7, 8, 9);
    image.place(ValueLocation::Inline, 3, TIMED_INLINE as u32);
    assert_eq!(image.deadline(), None);
    image.set_deadline(u64::MAX);
    image.donate();
    assert_eq!(
        (image.deadline(), image.values_in(), image.segment()),
        (Some(u64::MAX), Some(ValueLocation::Inline), 3)
    );
    assert!(
        image.donated()
            && !image.asks_to_stay()
            && !image.asks_to_rest()
            && image.len() == TIMED_INLINE
    );
}

#[test]
fn an_unknown_place_is_none() {
    let mut image = SlotMessage::new(0, 0, 0);
    image.extent = 3 << 48;
    assert_eq!(image.values_in(), None);
}
