//! Third-party packages, compiled: the packages that `crates/idl/tests/packages.rs` finds accepted
//! give Rust code without a warning.
#![deny(warnings)]
#![forbid(unsafe_code)]

/// One module for each package, and the list of them.
macro_rules! packages {
    ($($module:ident = $package:literal;)*) => {
        $( mod $module { upcall::interface!($package); } )*
        const COMPILED: &[&str] = &[$($package),*];
    };
}

packages! {
    spin_legacy = "../idl/tests/packages/spin/legacy";
    spin_mqtt = "../idl/tests/packages/spin/mqtt";
    spin_redis = "../idl/tests/packages/spin/redis";
    spin_variables = "../idl/tests/packages/spin/variables";
    wasi_0_2_cli = "../idl/tests/packages/wasi-0.2/cli";
    wasi_0_2_clocks = "../idl/tests/packages/wasi-0.2/clocks";
    wasi_0_2_filesystem = "../idl/tests/packages/wasi-0.2/filesystem";
    wasi_0_2_http = "../idl/tests/packages/wasi-0.2/http";
    wasi_0_2_io = "../idl/tests/packages/wasi-0.2/io";
    wasi_0_2_random = "../idl/tests/packages/wasi-0.2/random";
    wasi_0_2_sockets = "../idl/tests/packages/wasi-0.2/sockets";
    wasi_0_3_clocks = "../idl/tests/packages/wasi-0.3/clocks";
    wasi_0_3_random = "../idl/tests/packages/wasi-0.3/random";
    wasi_proposals_config = "../idl/tests/packages/wasi-proposals/config";
    wasi_proposals_keyvalue = "../idl/tests/packages/wasi-proposals/keyvalue";
    wasi_proposals_nn = "../idl/tests/packages/wasi-proposals/nn";
    wasi_proposals_otel = "../idl/tests/packages/wasi-proposals/otel";
    wasi_proposals_tls = "../idl/tests/packages/wasi-proposals/tls";
    wit_parser_async = "../idl/tests/packages/wit-parser/async.wit";
    wit_parser_complex_include = "../idl/tests/packages/wit-parser/complex-include";
    wit_parser_cross_package_resource = "../idl/tests/packages/wit-parser/cross-package-resource";
    wit_parser_diamond1 = "../idl/tests/packages/wit-parser/diamond1";
    wit_parser_disambiguate_diamond = "../idl/tests/packages/wit-parser/disambiguate-diamond";
    wit_parser_distinct_names = "../idl/tests/packages/wit-parser/distinct-names.wit";
    wit_parser_empty = "../idl/tests/packages/wit-parser/empty.wit";
    wit_parser_feature_gates = "../idl/tests/packages/wit-parser/feature-gates.wit";
    wit_parser_feature_types = "../idl/tests/packages/wit-parser/feature-types.wit";
    wit_parser_foreign_deps = "../idl/tests/packages/wit-parser/foreign-deps";
    wit_parser_foreign_deps_union = "../idl/tests/packages/wit-parser/foreign-deps-union";
    wit_parser_foreign_interface_dep_gated =
        "../idl/tests/packages/wit-parser/foreign-interface-dep-gated.wit";
    wit_parser_functions = "../idl/tests/packages/wit-parser/functions.wit";
    wit_parser_gated_include = "../idl/tests/packages/wit-parser/gated-include.wit";
    wit_parser_gated_use = "../idl/tests/packages/wit-parser/gated-use.wit";
    wit_parser_ignore_files_deps = "../idl/tests/packages/wit-parser/ignore-files-deps";
    wit_parser_import_export_overlap1 =
        "../idl/tests/packages/wit-parser/import-export-overlap1.wit";
    wit_parser_import_export_overlap2 =
        "../idl/tests/packages/wit-parser/import-export-overlap2.wit";
    wit_parser_include_reps = "../idl/tests/packages/wit-parser/include-reps.wit";
    wit_parser_kebab_name_include_with =
        "../idl/tests/packages/wit-parser/kebab-name-include-with.wit";
    wit_parser_many_names = "../idl/tests/packages/wit-parser/many-names";
    wit_parser_max_flags = "../idl/tests/packages/wit-parser/max-flags.wit";
    wit_parser_multi_file = "../idl/tests/packages/wit-parser/multi-file";
    wit_parser_multi_file_multi_package =
        "../idl/tests/packages/wit-parser/multi-file-multi-package";
    wit_parser_multi_package_deps = "../idl/tests/packages/wit-parser/multi-package-deps";
    wit_parser_multi_package_gated_include =
        "../idl/tests/packages/wit-parser/multi-package-gated-include.wit";
    wit_parser_multi_package_shared_deps =
        "../idl/tests/packages/wit-parser/multi-package-shared-deps";
    wit_parser_multi_package_transitive_deps =
        "../idl/tests/packages/wit-parser/multi-package-transitive-deps";
    wit_parser_name_both_resource_and_type =
        "../idl/tests/packages/wit-parser/name-both-resource-and-type";
    wit_parser_package_syntax1 = "../idl/tests/packages/wit-parser/package-syntax1.wit";
    wit_parser_package_syntax3 = "../idl/tests/packages/wit-parser/package-syntax3.wit";
    wit_parser_package_syntax4 = "../idl/tests/packages/wit-parser/package-syntax4.wit";
    wit_parser_packages_multiple_nested =
        "../idl/tests/packages/wit-parser/packages-multiple-nested.wit";
    wit_parser_packages_nested_colliding_decl_names =
        "../idl/tests/packages/wit-parser/packages-nested-colliding-decl-names.wit";
    wit_parser_packages_nested_internal_references =
        "../idl/tests/packages/wit-parser/packages-nested-internal-references.wit";
    wit_parser_packages_nested_with_semver =
        "../idl/tests/packages/wit-parser/packages-nested-with-semver.wit";
    wit_parser_packages_single_nested =
        "../idl/tests/packages/wit-parser/packages-single-nested.wit";
    wit_parser_random = "../idl/tests/packages/wit-parser/random.wit";
    wit_parser_resources_empty = "../idl/tests/packages/wit-parser/resources-empty.wit";
    wit_parser_resources_multiple_returns_own =
        "../idl/tests/packages/wit-parser/resources-multiple-returns-own.wit";
    wit_parser_resources_multiple = "../idl/tests/packages/wit-parser/resources-multiple.wit";
    wit_parser_resources_return_own = "../idl/tests/packages/wit-parser/resources-return-own.wit";
    wit_parser_resources = "../idl/tests/packages/wit-parser/resources.wit";
    wit_parser_resources1 = "../idl/tests/packages/wit-parser/resources1.wit";
    wit_parser_same_name_import_export =
        "../idl/tests/packages/wit-parser/same-name-import-export.wit";
    wit_parser_shared_types = "../idl/tests/packages/wit-parser/shared-types.wit";
    wit_parser_since_and_unstable = "../idl/tests/packages/wit-parser/since-and-unstable.wit";
    wit_parser_stress_export_elaborate =
        "../idl/tests/packages/wit-parser/stress-export-elaborate.wit";
    wit_parser_type_then_eof = "../idl/tests/packages/wit-parser/type-then-eof.wit";
    wit_parser_union_fuzz_1 = "../idl/tests/packages/wit-parser/union-fuzz-1.wit";
    wit_parser_union_fuzz_2 = "../idl/tests/packages/wit-parser/union-fuzz-2.wit";
    wit_parser_unstable_resource = "../idl/tests/packages/wit-parser/unstable-resource.wit";
    wit_parser_use_chain = "../idl/tests/packages/wit-parser/use-chain.wit";
    wit_parser_use = "../idl/tests/packages/wit-parser/use.wit";
    wit_parser_version_syntax = "../idl/tests/packages/wit-parser/version-syntax.wit";
    wit_parser_versions = "../idl/tests/packages/wit-parser/versions";
    wit_parser_wasi = "../idl/tests/packages/wit-parser/wasi.wit";
    wit_parser_with_resource_as = "../idl/tests/packages/wit-parser/with-resource-as.wit";
    wit_parser_world_diamond = "../idl/tests/packages/wit-parser/world-diamond.wit";
    wit_parser_world_iface_no_collide =
        "../idl/tests/packages/wit-parser/world-iface-no-collide.wit";
    wit_parser_world_implicit_import1 =
        "../idl/tests/packages/wit-parser/world-implicit-import1.wit";
    wit_parser_world_implicit_import2 =
        "../idl/tests/packages/wit-parser/world-implicit-import2.wit";
    wit_parser_world_implicit_import3 =
        "../idl/tests/packages/wit-parser/world-implicit-import3.wit";
    wit_parser_world_same_fields4 = "../idl/tests/packages/wit-parser/world-same-fields4.wit";
    wit_parser_world_top_level_funcs = "../idl/tests/packages/wit-parser/world-top-level-funcs.wit";
    wit_parser_world_top_level_resources =
        "../idl/tests/packages/wit-parser/world-top-level-resources.wit";
    wit_parser_worlds_union_dedup = "../idl/tests/packages/wit-parser/worlds-union-dedup.wit";
    wit_parser_worlds_with_types = "../idl/tests/packages/wit-parser/worlds-with-types.wit";
}

/// Empty packages generate no code. A package that becomes accepted must be added above.
#[test]
fn every_package_that_is_accepted_is_compiled_here() {
    let told = include_str!("../../idl/tests/snapshots/packages.txt");
    let accepted = told
        .lines()
        .filter(|line| !line.starts_with(' ') && line.contains(" interfaces, "))
        .filter_map(|line| line.split_once(':'));
    let accepted: Vec<String> =
        accepted.map(|(name, _)| format!("../idl/tests/packages/{name}")).collect();
    assert!(accepted.len() > 50, "{told}");
    assert_eq!(COMPILED, accepted);
}
