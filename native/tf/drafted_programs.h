#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/pjrt/device_buffer.h"
#include "native/tensor/signature.h"
#include "native/tf/accelerator_use.h"
#include "native/tf/loaded_tables.h"
#include "native/tf/resource_reads.h"
#include "native/tf/signature_draft.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {
class MetaGraphDef;
class Session;
}  // namespace tensorflow

namespace millpond::tf {

// A program that the cache has not.
struct MissingProgram {
  std::string name;  // for people, like "signature 'serving_default', 512 rows"
  std::string hlo;   // a serialized xla.HloModuleProto
};

// The programs of a version, by their code: a program that two accelerators need counts once.
struct ProgramList {
  int64_t count = 0;
  std::vector<MissingProgram> missing;  // that one of the accelerators would compile
};

// The programs of a version for accelerators, before they are compiled. It must not outlive the
// load, because it holds the variables.
class DraftedPrograms {
 public:
  // Translates the signatures of `meta_graph`, whose variables have their values in `session`, for
  // `use` (signature_draft.h). `tables` are those of this version, null for none. Borrows
  // `signatures`.
  static base::StatusOr<DraftedPrograms> Draft(AcceleratorUse use,
                                               const tensorflow::MetaGraphDef& meta_graph,
                                               const tensor::SignatureMap& signatures,
                                               LoadedTables* tables, tensorflow::Session* session);

  // Lists what is to be compiled, including the programs of deltas.
  ProgramList List() const;

  AcceleratorUse& use() { return use_; }
  SignatureDrafts& drafts() { return drafts_; }
  // The variables of all signatures, and the place of each.
  const std::vector<pjrt::HostTensor>& tensors() const { return tensors_; }
  size_t IndexOf(const ResourceKey& variable) const { return indices_.at(variable); }

 private:
  DraftedPrograms(AcceleratorUse use, SignatureDrafts drafts)
      : use_(std::move(use)), drafts_(std::move(drafts)) {}

  AcceleratorUse use_;
  SignatureDrafts drafts_;
  std::map<ResourceKey, size_t> indices_;
  std::vector<tensorflow::Tensor> values_;
  // No request writes to a variable, so its memory stays as it is while the session lives.
  std::vector<pjrt::HostTensor> tensors_;
};

// Returns the tables that deltas may change, one of each shape: they share their programs
// (scatter_program.h).
std::vector<const pjrt::HostTensor*> TablesOfDeltas(const std::vector<pjrt::HostTensor>& tensors);

}  // namespace millpond::tf
