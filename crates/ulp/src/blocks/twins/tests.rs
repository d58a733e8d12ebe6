use super::*;

#[test]
fn a_lent_block_is_hollow_without_holders_and_comes_back_to_its_address() {
    let block = Block::of(b"contents").unwrap();
    let name = block.name();
    assert_eq!(Block::adopt(name, 0).unwrap_err(), NotAdopted::NotLent);
    held_afar(name, 1, true).unwrap();
    assert!(block.is_shared_afar());
    drop(block);
    assert_ne!(Block::new(8).unwrap().name(), name);
    let Ok(Adopted::Empty(block)) = Block::adopt(name, 0) else { panic!("not hollow") };
    block.fill(0, b"contents").unwrap();
    returned_from(name, 1);
    assert_eq!((block.holders(), block.is_shared_afar()), (1, false));
    assert_eq!(block.read(8).as_deref(), Some(&b"contents"[..]));
    drop(block);
    assert_eq!(Block::new(8).unwrap().name(), name);
}
