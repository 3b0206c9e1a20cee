#pragma once

#include <memory>
#include <utility>

#include "native/servable/servable.h"
#include "native/tf/saved_model.h"

namespace millpond::servable {

// A SavedModel, run by a TensorFlow session on the CPU. `model` has been through all its steps.
class SavedModelServable final : public Servable {
 public:
  SavedModelServable(ServableId id, std::unique_ptr<tf::SavedModel> model)
      : id_(std::move(id)), model_(std::move(model)) {}

  const ServableId& id() const override { return id_; }
  const tf::SignatureMap& signatures() const override { return model_->signatures(); }
  const std::string& signature_def_map() const override { return model_->signature_def_map(); }
  base::Status Run(const tf::Signature& signature, const tf::RunContext& run,
                   const tf::TensorList& inputs, tf::TensorList* outputs) const override {
    return model_->Run(signature, run, inputs, outputs);
  }

 private:
  const ServableId id_;
  // An arena comes before it here, so that it is freed after the session whose tensors it holds.
  const std::unique_ptr<tf::SavedModel> model_;
};

}  // namespace millpond::servable
