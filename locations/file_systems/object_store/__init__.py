"""Google Cloud Storage and Azure Storage through obstore, published by conditional PUT.

    gcs, azure     a cloud's settings and credentials; directories of Azure's hierarchical namespace
    settings       what the settings of all clouds have, and the options of obstore's HTTP client
    file_system    the file system over any store of obstore
    streams        objects being read and written
    objects        a bucket, an object, and the translation of obstore's errors

A new store of obstore is a module such as `gcs`, and a line in `registry`. S3 has its own modules over boto3,
which can do more there.
"""

from holdfast.locations.file_systems.object_store.azure import AzureFileSystem, AzureSettings
from holdfast.locations.file_systems.object_store.file_system import ObjectStoreFileSystem
from holdfast.locations.file_systems.object_store.gcs import GcsSettings
from holdfast.locations.file_systems.object_store.settings import ObjectStoreSettings
