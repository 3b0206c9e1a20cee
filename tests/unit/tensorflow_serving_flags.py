"""The names of TensorFlow Serving's flags, from its own help."""

# The order of `tensorflow_model_server --help`.
_HELP = """
    port grpc_socket_path rest_api_port rest_api_num_threads rest_api_timeout_in_ms
    rest_api_enable_cors_support enable_batching batching_parameters_file
    enable_per_model_batching_parameters allow_version_labels_for_unavailable_models
    model_config_file model_config_file_poll_wait_seconds model_name model_base_path
    num_load_threads num_unload_threads max_num_load_retries load_retry_interval_micros
    file_system_poll_wait_seconds flush_filesystem_caches tensorflow_session_parallelism
    tensorflow_intra_op_parallelism tensorflow_inter_op_parallelism
    tensorflow_session_config_file use_alts_credentials ssl_config_file platform_config_file
    per_process_gpu_memory_fraction saved_model_tags grpc_channel_arguments grpc_max_threads
    enable_model_warmup num_request_iterations_for_warmup version monitoring_config_file
    remove_unused_fields_from_bundle_metagraph prefer_tflite_model num_tflite_pools
    num_tflite_interpreters_per_pool enable_signature_method_name_check
    xla_cpu_compilation_enabled xla_gpu_compilation_enabled enable_profiler
    thread_pool_factory_config_file mixed_precision skip_initialize_tpu
    enable_grpc_healthcheck_service enable_serialization_as_tensor_content
"""
NAMES_IN_HELP = _HELP.split()
