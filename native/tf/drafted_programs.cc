#include "native/tf/drafted_programs.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "native/pjrt/executable_cache.h"
#include "native/pjrt/row_scatter.h"
#include "native/tf/buffer_type.h"
#include "native/tf/scatter_program.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {
namespace {

using tensorflow::Tensor;

pjrt::HostTensor AsHostTensor(const Tensor& tensor, LoadedTables* tables) {
  const auto sizes = tensor.shape().dim_sizes();
  const auto data = tensor.tensor_data();
  return {BufferType(tensor.dtype()),
          {sizes.begin(), sizes.end()},
          data.data(),
          data.size(),
          tables == nullptr ? nullptr : tables->ContentsOf(tensor)};
}

// The bytes that the parameters of a version may take on each accelerator: what is free, and half
// of all at most, so that the version after it fits beside it. All is what the model may have.
int64_t RoomBytes(const AcceleratorUse& use) {
  int64_t room =
      use.memory_bytes_max > 0 ? use.memory_bytes_max / 2 : std::numeric_limits<int64_t>::max();
  for (const auto& accelerator : use.accelerators) {
    const pjrt::AcceleratorState state = accelerator->State();
    if (state.limit_bytes == 0) continue;
    const auto memory = accelerator->Memory();
    const int64_t used = memory.ok() ? memory.value().used_bytes : state.parameter_bytes;
    room = std::min({room, state.limit_bytes / 2, state.limit_bytes - used});
  }
  return room;
}

// Adds programs that one of the accelerators would compile to a list, each once.
class Listing {
 public:
  explicit Listing(const AcceleratorUse& use) : use_(use), cache_(use.cache_directory) {}

  void Add(const std::string& whose, const std::map<int64_t, std::string>& hlo_by_rows) {
    for (const auto& [rows, hlo] : hlo_by_rows) {
      if (!seen_.insert(std::hash<std::string>()(hlo)).second) continue;
      ++list_.count;
      if (!IsMissing(hlo)) continue;
      list_.missing.push_back({whose + ", " + std::to_string(rows) + " rows", hlo});
    }
  }
  ProgramList Take() { return std::move(list_); }

 private:
  bool IsMissing(const std::string& hlo) const {
    return std::any_of(use_.accelerators.begin(), use_.accelerators.end(),
                       [&](const auto& accelerator) { return !cache_.Has(*accelerator, hlo); });
  }

  const AcceleratorUse& use_;
  const pjrt::ExecutableCache cache_;
  // Hashes, because a program may have large constants. A load compiles a program that is left out
  // by chance.
  std::set<size_t> seen_;
  ProgramList list_;
};

}  // namespace

base::StatusOr<DraftedPrograms> DraftedPrograms::Draft(AcceleratorUse use,
                                                       const tensorflow::MetaGraphDef& meta_graph,
                                                       const tensor::SignatureMap& signatures,
                                                       LoadedTables* tables,
                                                       tensorflow::Session* session) {
  SignatureDrafts drafts = DraftSignatures(
      meta_graph, signatures, {use.rows, use.only_if_worth, use.tables, RoomBytes(use)});
  DraftedPrograms made(std::move(use), std::move(drafts));
  for (const SignatureDraft& draft : made.drafts_.drafts) {
    for (const ResourceKey& key : draft.variables) {
      if (!made.indices_.emplace(key, made.values_.size()).second) continue;
      base::StatusOr<Tensor> value = ValueOf(key, session);
      if (!value.ok()) return value.status();
      made.values_.push_back(std::move(value.value()));
    }
  }
  for (const Tensor& value : made.values_) made.tensors_.push_back(AsHostTensor(value, tables));
  return made;
}

ProgramList DraftedPrograms::List() const {
  Listing listing(use_);
  for (const SignatureDraft& draft : drafts_.drafts) {
    listing.Add("signature '" + draft.signature->name + "'", draft.hlo_by_rows);
  }
  for (const pjrt::HostTensor* const table : TablesOfDeltas(tensors_)) {
    const auto programs = ScatterPrograms(*table);
    if (programs.ok()) listing.Add("deltas of '" + table->contents->name + "'", programs.value());
  }
  return listing.Take();
}

std::vector<const pjrt::HostTensor*> TablesOfDeltas(const std::vector<pjrt::HostTensor>& tensors) {
  std::vector<const pjrt::HostTensor*> tables;
  for (const pjrt::HostTensor& tensor : tensors) {
    if (tensor.contents == nullptr || !tensor.contents->has_writer) continue;
    const bool is_seen = std::any_of(tables.begin(), tables.end(), [&](const auto* table) {
      return table->type == tensor.type && table->dims == tensor.dims;
    });
    if (!is_seen) tables.push_back(&tensor);
  }
  return tables;
}

}  // namespace millpond::tf
