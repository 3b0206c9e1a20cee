#include "native/tf/callable_set.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tf {
namespace {

using base::Code;
using base::Status;

// Reduces `tensors`, which holds all outputs, to the tensors of `outputs`.
void Pick(const tensor::OutputSet& outputs, std::vector<tensorflow::Tensor>* tensors) {
  size_t picked_count = 0;
  for (size_t i = 0; i < tensors->size(); ++i) {
    if (!outputs.Contains(i)) continue;
    if (picked_count != i) (*tensors)[picked_count] = std::move((*tensors)[i]);
    picked_count += 1;
  }
  tensors->resize(picked_count);
}

// Returns true if `failed` concerns the request as a whole, so that it would fail with fewer
// outputs too.
bool IsOfTheRequest(const Status& failed) {
  return failed.code() == Code::kDeadlineExceeded || failed.code() == Code::kCancelled;
}

}  // namespace

CallableSet::CallableSet(tensorflow::Session* session, const tensor::Signature& signature)
    : session_(session),
      signature_(signature),
      all_(session, signature, tensor::OutputSet::All(signature.outputs.size())) {}

CallableSet::~CallableSet() {
  for (const auto& slot : set_callables_) delete slot.load(std::memory_order_acquire);
}

Status CallableSet::MakeCallable(const tensor::OutputSet& outputs) const {
  if (outputs.IsAll()) return all_.made();
  if (const Callable* const callable = Find(outputs)) return callable->made();
  if (HasRoom()) {
    auto made = std::make_unique<SetCallable>(session_, signature_, outputs);
    if (const SetCallable* const kept = Keep(&made)) return kept->callable.made();
  }
  return {Code::kResourceExhausted,
          "signature '" + signature_.name + "' has callables for " + std::to_string(kSetCountMax) +
              " sets of outputs; other sets use the callable for all outputs"};
}

Status CallableSet::Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                        tensor::TensorList* result) const {
  if (outputs.IsAll()) return all_.Run(inputs, result);
  if (const Callable* const callable = Find(outputs)) return callable->Run(inputs, result);
  const Status ran = all_.Run(inputs, result);
  if (ran.ok()) {
    Pick(outputs, &result->storage().tensors);
    return {};
  }
  if (IsOfTheRequest(ran) || !HasRoom()) return ran;
  return RunWithoutTheOthers(outputs, inputs, result);
}

size_t CallableSet::set_count() const {
  size_t count = 0;
  while (count < set_callables_.size() &&
         set_callables_[count].load(std::memory_order_acquire) != nullptr) {
    count += 1;
  }
  return count;
}

const Callable* CallableSet::Find(const tensor::OutputSet& outputs) const {
  for (const auto& slot : set_callables_) {
    const SetCallable* const made = slot.load(std::memory_order_acquire);
    if (made == nullptr) return nullptr;
    if (made->outputs == outputs) return &made->callable;
  }
  return nullptr;
}

// Puts `*made` into the first free slot and returns it. If another thread was faster with the
// same set, returns that thread's. Returns null and leaves `*made` to the caller if all slots
// are taken.
const CallableSet::SetCallable* CallableSet::Keep(std::unique_ptr<SetCallable>* made) const {
  for (auto& slot : set_callables_) {
    const SetCallable* there = nullptr;
    if (slot.compare_exchange_strong(there, made->get(), std::memory_order_acq_rel)) {
      return made->release();
    }
    if (there->outputs == (*made)->outputs) return there;
  }
  return nullptr;
}

// Makes the callable within the request, once for each set, because correct answers come before
// p999. Called only while a slot is free, because otherwise requests that fail, each with a new
// set, would each pay for a callable.
Status CallableSet::RunWithoutTheOthers(const tensor::OutputSet& outputs,
                                        const tensor::TensorList& inputs,
                                        tensor::TensorList* result) const {
  auto made = std::make_unique<SetCallable>(session_, signature_, outputs);
  const SetCallable* const kept = Keep(&made);
  return (kept != nullptr ? kept : made.get())->callable.Run(inputs, result);
}

}  // namespace millpond::tf
