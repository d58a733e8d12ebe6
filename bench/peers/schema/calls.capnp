# The calls of the benchmark. src/calls_capnp.rs is generated from this file and kept under version
# control, so that building needs no schema compiler:
#   capnp compile -o rust:src --src-prefix=schema schema/calls.capnp      (capnpc-rust 0.27)
@0xd2d5bd0c5e1a4c37;

interface Calls {
  null @0 ();
  add @1 (a :Int32, b :Int32) -> (sum :Int32);
  bytesIn @2 (data :Data) -> (sum :UInt64);
  bigInOut @3 (data :Data) -> (data :Data);
}
