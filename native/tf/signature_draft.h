#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/ahead_compiler.h"
#include "native/pjrt/executable_cache.h"
#include "native/pjrt/side_times.h"
#include "native/tensor/signature.h"
#include "native/tf/host_tables.h"
#include "native/tf/resource_reads.h"
#include "native/tf/signature_split.h"

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// The place of one signature, on an accelerator or on the CPU.
struct AcceleratedSignature {
  std::string name;
  std::vector<int64_t> rows;  // the sizes of its programs; none if it stays on the CPU
  // Why it stays on the CPU, or with `rows`, why it does until there is memory; "" if it does not.
  std::string reason;
  std::vector<std::string> host_ops;     // for whose sake a part of it runs on the CPU, sorted
  std::vector<std::string> host_tables;  // that could be on the accelerator, sorted
  // The sizes of those programs that were compiled for a GPU without autotuning.
  std::vector<int64_t> untuned_rows;
  // True if its programs run requests of exactly their rows, because a row may depend on others.
  bool needs_exact_rows = false;
  // The times of both sides, and which one is chosen; empty if all runs are for the accelerator.
  std::vector<pjrt::SizeTimes> sizes;
};

// How signatures are translated.
struct DraftRules {
  std::vector<int64_t> rows;  // the numbers of rows that programs are made for, from 1 on
  bool only_if_worth = true;  // leaves signatures on the CPU that are faster there
  TablePlace tables = TablePlace::kAuto;
  // The most that parameters may take on an accelerator before tables stay here (host_tables.h).
  int64_t room_bytes = std::numeric_limits<int64_t>::max();
};

// A signature with a device part that can be translated, and its programs, before they are compiled
// and before the variables are there.
struct SignatureDraft {
  const tensor::Signature* signature = nullptr;
  SignatureSplit split;
  std::vector<ResourceKey> variables;
  std::vector<size_t> input_bytes;             // of a row of each input of the device part
  std::vector<size_t> output_bytes;            // the same of its outputs
  std::map<int64_t, std::string> hlo_by_rows;  // packed (packed_program.h)
  // The report of the signature if all its programs can be compiled.
  AcceleratedSignature report;
};

struct SignatureDrafts {
  // The signatures that can be translated, in their order.
  std::vector<SignatureDraft> drafts;
  // All signatures, by their names. A report without a draft has the reason.
  std::map<std::string, AcceleratedSignature> reports;
};

// Translates the signatures of `meta_graph`: about 0.1 s for each number of rows. The graph's
// variables need no values. Borrows `signatures`.
SignatureDrafts DraftSignatures(const tensorflow::MetaGraphDef& meta_graph,
                                const tensor::SignatureMap& signatures, const DraftRules& rules);

// Compiles the programs of the signatures into `cache`, without a session, and says what becomes of
// each signature. A server that loads the version under the same rules finds them there. Without a
// `compiler` nothing is compiled. Returns the error of a file of the cache that cannot be written.
base::StatusOr<std::vector<AcceleratedSignature>> CompileAhead(
    const tensorflow::MetaGraphDef& meta_graph, const tensor::SignatureMap& signatures,
    const DraftRules& rules, const pjrt::AheadCompiler* compiler,
    const pjrt::ExecutableCache& cache);

}  // namespace millpond::tf
