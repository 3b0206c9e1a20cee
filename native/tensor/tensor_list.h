#pragma once

#include <cstddef>
#include <memory>

namespace millpond::tensor {

// The tensors of a TensorList. A program links one definition of this struct and of the functions
// of tensor_list.h, tensor_access.h and tensor_codec.h: native/tf/ with TensorFlow's tensors, or
// tests/native/opaque_tensors.cc with plain bytes; one suite tests both (tensor_access_contract.h).
// So no call is virtual, and a session takes and returns its own tensors without a copy. A servable
// of another kind reads and makes tensors with tensor_access.h.
struct TensorStorage;

// The tensors of one request or reply, in the order of a signature's inputs or outputs. Not
// thread-safe. A thread may keep a list and reuse it, which keeps the memory of the list itself.
class TensorList {
 public:
  TensorList();
  ~TensorList();
  TensorList(TensorList&&) noexcept;
  TensorList& operator=(TensorList&&) noexcept;

  size_t size() const;
  // Replaces the tensors with `size` empty tensors.
  void Reset(size_t size);

  // For code that includes the definition of TensorStorage.
  TensorStorage& storage() { return *storage_; }
  const TensorStorage& storage() const { return *storage_; }

 private:
  std::unique_ptr<TensorStorage> storage_;
};

}  // namespace millpond::tensor
