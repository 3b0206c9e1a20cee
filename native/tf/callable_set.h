#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>

#include "native/tf/callable.h"
#include "native/tf/signature_runner.h"

namespace millpond::tf {

// The callables of one signature: one for all outputs, and one for each set of outputs
// that MakeCallable got.
//
// A run for a set without a callable runs the callable for all outputs, and picks the outputs of
// the set. So no request waits while a callable is made. There is one exception: if that run fails,
// an output outside of the set may be the reason. The request is then answered by a callable for
// just the set, which is made within the request.
//
// Thread: any number of threads at the same time, all methods. Look-ups are wait-free, because sets
// are only ever added. Lifetime: within the life of the session. Cost of a run beyond the cost of
// the callable: a comparison for each such set.
class CallableSet final : public SignatureRunner {
 public:
  // The most such sets. A client may request any subset of 100 outputs, and each callable holds
  // an executor as large as its part of the graph.
  static constexpr size_t kSetCountMax = 64;

  // Makes the callable for all outputs. Borrows both arguments.
  CallableSet(tensorflow::Session* session, const tensor::Signature& signature);
  ~CallableSet() override;

  const base::Status& made() const override { return all_.made(); }

  // Makes a callable for `outputs`. Returns the reason if that fails, and RESOURCE_EXHAUSTED if
  // kSetCountMax callables are kept. Call it before the version is published, and then run
  // it: from now on requests for this set use the callable, and its first run is slow.
  base::Status MakeCallable(const tensor::OutputSet& outputs) const override;

  base::Status Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override;

  // The number of sets with a callable, apart from the set of all outputs.
  size_t set_count() const;
  bool HasRoom() const { return set_count() < kSetCountMax; }

 private:
  struct SetCallable {
    SetCallable(tensorflow::Session* session, const tensor::Signature& signature,
                const tensor::OutputSet& set)
        : outputs(set), callable(session, signature, set) {}
    const tensor::OutputSet outputs;
    const Callable callable;
  };

  // Returns null if the set has no callable.
  const Callable* Find(const tensor::OutputSet& outputs) const;
  const SetCallable* Keep(std::unique_ptr<SetCallable>* made) const;
  base::Status RunWithoutTheOthers(const tensor::OutputSet& outputs,
                                   const tensor::TensorList& inputs,
                                   tensor::TensorList* result) const;

  tensorflow::Session* const session_;
  const tensor::Signature& signature_;
  const Callable all_;
  // Filled from the front, owned. A full slot stays unchanged to the end.
  mutable std::array<std::atomic<const SetCallable*>, kSetCountMax> set_callables_{};
};

}  // namespace millpond::tf
