#pragma once

#include <cstdint>

#include "native/servable/session.h"
#include "tests/native/fake_servable.h"
#include "tests/native/tf_example_messages.h"

namespace millpond::testing {

// A session that gives each fetch the bytes of the first feed, and keeps the names of its last run.
class SessionServable final : public FakeServable, public servable::Session {
 public:
  SessionServable() : FakeServable({"m", 7}, {XToY()}) {}

  const servable::Session* session() const override { return this; }
  base::Status RunSession(const servable::SessionRunNames& names, const tensor::RunContext& run,
                          const tensor::TensorList& fed,
                          tensor::TensorList* fetched) const override {
    asked = names;
    deadline_ns = run.deadline_ns;
    fetched->Reset(names.fetches.size());
    if (fed.size() == 0) return {};
    for (auto& tensor : fetched->storage().tensors) tensor.bytes = fed.storage().tensors[0].bytes;
    return {};
  }

  mutable servable::SessionRunNames asked;
  mutable int64_t deadline_ns = 0;

 private:
  static tensor::Signature XToY() {
    tensor::Signature signature{"serving_default", "", {SpecOf("x")}, {SpecOf("y")}};
    signature.outputs[0].tensor_name = "out:0";
    return signature;
  }
};

}  // namespace millpond::testing
