#pragma once

#include <cstdint>
#include <string>

#include "native/servable/servable.h"
#include "native/servable/session.h"
#include "tests/native/tf_example_messages.h"

namespace millpond::testing {

// A session that gives each fetch the bytes of the first feed, and keeps the names of its last run.
class SessionServable final : public servable::Servable, public servable::Session {
 public:
  SessionServable() {
    tensor::Signature& signature = signatures_["serving_default"];
    signature.name = "serving_default";
    signature.inputs = {SpecOf("x")};
    signature.outputs = {SpecOf("y")};
    signature.outputs[0].tensor_name = "out:0";
  }
  const servable::ServableId& id() const override { return id_; }
  const tensor::SignatureMap& signatures() const override { return signatures_; }
  const std::string& signature_def_map() const override { return id_.name; }
  base::Status Prepare(const tensor::Signature&, const tensor::OutputSet&) const override {
    return {};
  }
  base::Status Run(const tensor::Signature&, const tensor::OutputSet&, const tensor::RunContext&,
                   const tensor::TensorList&, tensor::TensorList*) const override {
    return {};
  }
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
  const servable::ServableId id_{"m", 7};
  tensor::SignatureMap signatures_;
};

}  // namespace millpond::testing
