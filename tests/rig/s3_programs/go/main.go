// Clients in Go: minio-go, and the AWS SDK for Go.
//
// usage: go-clients minio|sdk WRITE_URL READ_URL BUCKET    The credentials are those of the AWS variables.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/url"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const mib = 1 << 20

// largeBytes is more than one block of the store, so that ranges of it cross the borders of blocks, tail and parts.
const largeBytes = 12*mib + 17

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: go-clients minio|sdk WRITE_URL READ_URL BUCKET")
	}
	uses := map[string]func(context.Context, string, string, string) error{"minio": useMinio, "sdk": useSdk}
	use, known := uses[os.Args[1]]
	if !known {
		log.Fatalf("unknown client %q", os.Args[1])
	}
	if err := use(context.Background(), os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func randomBytes(seed byte, size int) []byte {
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{seed}).Read(data)
	return data
}

// same compares what was read with what was wanted, and names the first byte that differs.
func same(what string, found io.Reader, wanted []byte) error {
	data, err := io.ReadAll(found)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if len(data) != len(wanted) {
		return fmt.Errorf("%s: %d bytes instead of %d", what, len(data), len(wanted))
	}
	for index := range data {
		if data[index] != wanted[index] {
			return fmt.Errorf("%s: byte %d differs", what, index)
		}
	}
	return nil
}

// --- minio-go -----------------------------------------------------------------------------------

func minioClient(address string) (*minio.Client, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	return minio.New(parsed.Host, &minio.Options{
		Creds:        credentials.NewEnvAWS(),
		BucketLookup: minio.BucketLookupPath,
		MaxRetries:   1,
	})
}

func useMinio(ctx context.Context, writeURL, readURL, bucket string) error {
	write, err := minioClient(writeURL)
	if err != nil {
		return err
	}
	read, err := minioClient(readURL)
	if err != nil {
		return err
	}
	if err := write.MakeBucket(ctx, bucket, minio.MakeBucketOptions{}); err != nil {
		return err
	}
	large, small := randomBytes(1, largeBytes), randomBytes(2, 1000)
	notes := map[string]string{"Note": "kept ü"}
	for name, data := range map[string][]byte{"large": large, "small ü+%": small} {
		options := minio.PutObjectOptions{DisableMultipart: true, UserMetadata: map[string]string{"Note": "kept"}}
		if _, err := write.PutObject(ctx, bucket, name, bytes.NewReader(data), int64(len(data)), options); err != nil {
			return fmt.Errorf("put %s: %w", name, err)
		}
	}
	// A stream of unknown length goes in parts.
	if _, err := write.PutObject(ctx, bucket, "stream", io.MultiReader(bytes.NewReader(large)), -1,
		minio.PutObjectOptions{PartSize: 5 * mib, UserMetadata: notes}); err != nil {
		return fmt.Errorf("put a stream: %w", err)
	}
	status, err := read.StatObject(ctx, bucket, "stream", minio.StatObjectOptions{})
	if err != nil {
		return err
	}
	if status.UserMetadata["Note"] != "kept ü" {
		return fmt.Errorf("metadata: %q", status.UserMetadata)
	}
	if err := composeWithMinio(ctx, write, bucket); err != nil {
		return err
	}
	composed := append(bytes.Clone(large[mib+1:10*mib]), small...)
	wanted := map[string][]byte{"large": large, "stream": large, "small ü+%": small, "composed": composed, "copy": large}
	for name, data := range wanted {
		object, err := read.GetObject(ctx, bucket, name, minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		if err := same(name, object, data); err != nil {
			return err
		}
		// LastModified of a listing and of HEAD are the same time.
		status, err := object.Stat()
		if err != nil {
			return err
		}
		for entry := range read.ListObjects(ctx, bucket, minio.ListObjectsOptions{Prefix: name}) {
			if entry.Err != nil || !entry.LastModified.Equal(status.LastModified) {
				return fmt.Errorf("%s: listed %v %w, HEAD says %v", name, entry.LastModified, entry.Err, status.LastModified)
			}
		}
		object.Close()
	}
	for name := range wanted {
		if err := write.RemoveObject(ctx, bucket, name, minio.RemoveObjectOptions{}); err != nil {
			return err
		}
	}
	return read.RemoveBucket(ctx, bucket)
}

// composeWithMinio lets the gateway copy ranges, with UploadPartCopy.
func composeWithMinio(ctx context.Context, write *minio.Client, bucket string) error {
	sources := []minio.CopySrcOptions{
		{Bucket: bucket, Object: "large", MatchRange: true, Start: mib + 1, End: 10*mib - 1},
		{Bucket: bucket, Object: "small ü+%"},
	}
	if _, err := write.ComposeObject(ctx, minio.CopyDestOptions{Bucket: bucket, Object: "composed"}, sources...); err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	source := minio.CopySrcOptions{Bucket: bucket, Object: "large"}
	if _, err := write.CopyObject(ctx, minio.CopyDestOptions{Bucket: bucket, Object: "copy"}, source); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}

// --- the AWS SDK --------------------------------------------------------------------------------

func sdkClient(address string) *s3.Client {
	keys := func(context.Context) (aws.Credentials, error) {
		access, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
		return aws.Credentials{AccessKeyID: access, SecretAccessKey: secret}, nil
	}
	return s3.New(s3.Options{
		BaseEndpoint:     aws.String(address),
		Credentials:      aws.CredentialsProviderFunc(keys),
		Region:           os.Getenv("AWS_DEFAULT_REGION"),
		UsePathStyle:     true,
		RetryMaxAttempts: 1,
		Logger:           logging.Nop{},
	})
}

func useSdk(ctx context.Context, writeURL, readURL, bucket string) error {
	write, read := sdkClient(writeURL), sdkClient(readURL)
	if _, err := write.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		return err
	}
	// It asks without credentials, and the gateway refuses.
	region, err := manager.GetBucketRegion(ctx, read, bucket)
	if err != nil {
		return fmt.Errorf("the region of the bucket: %w", err)
	}
	if region != "us-east-1" {
		return fmt.Errorf("the region of the bucket: %q", region)
	}
	large := randomBytes(3, largeBytes)
	upload := &s3.PutObjectInput{Bucket: &bucket, Key: aws.String("large"), Body: bytes.NewReader(large)}
	if _, err := manager.NewUploader(write).Upload(ctx, upload); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	back := manager.NewWriteAtBuffer(nil)
	if _, err := manager.NewDownloader(read).Download(ctx, back, &s3.GetObjectInput{
		Bucket: &bucket, Key: aws.String("large"),
	}); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	if err := same("large", bytes.NewReader(back.Bytes()), large); err != nil {
		return err
	}
	if _, err := write.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: aws.String("large")}); err != nil {
		return err
	}
	_, err = read.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: &bucket})
	return err
}
