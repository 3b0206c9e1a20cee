#include "native/tf/joint_runners.h"

#include <algorithm>
#include <utility>

#include "native/tensor/output_set.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tf {
namespace {

using base::Status;

const std::string& InputOf(const tensor::Signature& signature) {
  return signature.inputs[0].tensor_name;
}

// Returns one signature with the distinct input tensors of the parts and all their outputs.
tensor::Signature Join(const std::vector<const tensor::Signature*>& parts) {
  tensor::Signature joint;
  std::set<std::string> fed;
  for (const tensor::Signature* part : parts) {
    joint.name += (joint.name.empty() ? "" : "', '") + part->name;
    if (fed.insert(InputOf(*part)).second) joint.inputs.push_back(part->inputs[0]);
    joint.outputs.insert(joint.outputs.end(), part->outputs.begin(), part->outputs.end());
  }
  return joint;
}

}  // namespace

JointRunner::JointRunner(std::vector<const tensor::Signature*> parts, const MakeRunner& make)
    : parts_(std::move(parts)), joint_(Join(parts_)), runner_(make(joint_)) {}

Status JointRunner::Run(const std::vector<const tensor::Signature*>& order,
                        const tensor::TensorList& inputs,
                        std::vector<tensor::TensorList>* results) const {
  tensor::TensorList fed;
  fed.Reset(joint_.inputs.size());
  for (auto& tensor : fed.storage().tensors) tensor = inputs.storage().tensors[0];
  tensor::TensorList all;
  MILLPOND_RETURN_IF_ERROR(runner_->Run(tensor::OutputSet::All(joint_.outputs.size()), fed, &all));
  results->clear();
  results->resize(order.size());
  auto output = all.storage().tensors.begin();
  for (const tensor::Signature* part : parts_) {
    const size_t place = std::find(order.begin(), order.end(), part) - order.begin();
    const auto end = output + static_cast<std::ptrdiff_t>(part->outputs.size());
    (*results)[place].storage().tensors.assign(output, end);
    output = end;
  }
  return {};
}

JointRunners::JointRunners(const tensor::SignatureMap& signatures,
                           const tensorflow::GraphDef& graph, size_t count_max,
                           JointRunner::MakeRunner make)
    : count_max_(std::min(count_max, kKeptCountMax)), make_(std::move(make)) {
  std::set<std::string> inputs;
  for (const auto& [name, signature] : signatures) {
    for (const tensor::TensorSpec& input : signature.inputs) inputs.insert(input.tensor_name);
  }
  for (const tensorflow::NodeDef& node : graph.node()) {
    if (node.op() != "Placeholder") continue;
    const std::string tensor_name = node.name() + ":0";
    if (inputs.count(tensor_name) > 0) placeholders_.insert(tensor_name);
  }
}

JointRunners::~JointRunners() {
  for (const auto& slot : kept_) delete slot.load(std::memory_order_acquire);
}

const JointRunner* JointRunners::FindOrMake(
    const std::vector<const tensor::Signature*>& signatures) const {
  Parts parts = signatures;
  std::sort(parts.begin(), parts.end(), std::less<>());
  const JointRunner* runner = Find(parts);
  if (runner == nullptr && CanJoin(parts)) runner = Make(parts);
  return runner != nullptr && runner->made().ok() ? runner : nullptr;
}

size_t JointRunners::kept_count() const {
  size_t count = 0;
  while (count < kept_.size() && kept_[count].load(std::memory_order_acquire) != nullptr) {
    count += 1;
  }
  return count;
}

bool JointRunners::CanJoin(const Parts& parts) const {
  if (parts.size() < 2) return false;
  const auto feeds_first = [&](const tensor::Signature* part) {
    return InputOf(*part) == InputOf(*parts[0]);
  };
  const auto feeds_placeholder = [&](const tensor::Signature* part) {
    return placeholders_.count(InputOf(*part)) > 0;
  };
  return std::all_of(parts.begin(), parts.end(), feeds_first) ||
         std::all_of(parts.begin(), parts.end(), feeds_placeholder);
}

const JointRunner* JointRunners::Find(const Parts& parts) const {
  for (const auto& slot : kept_) {
    const JointRunner* const kept = slot.load(std::memory_order_acquire);
    if (kept == nullptr) return nullptr;
    if (kept->parts() == parts) return kept;
  }
  return nullptr;
}

// Makes and keeps a runner. A runner that cannot be run is kept too, because otherwise each request
// would try to make it again.
const JointRunner* JointRunners::Make(const Parts& parts) const {
  const std::unique_lock lock(making_, std::try_to_lock);
  if (!lock.owns_lock()) return nullptr;
  // Another thread may have made it since the caller's look-up.
  if (const JointRunner* const kept = Find(parts)) return kept;
  const size_t count = kept_count();
  if (count >= count_max_) return nullptr;
  auto made = std::make_unique<const JointRunner>(parts, make_);
  kept_[count].store(made.get(), std::memory_order_release);
  return made.release();
}

}  // namespace millpond::tf
